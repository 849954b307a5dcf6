"""Between the API's RFC 3339 texts and seconds since 1970. Nobody reads the clock here."""

from datetime import UTC, datetime


def text(seconds: float) -> str:
    """As the API server writes times: UTC, whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(rfc3339: str, *, default: float = 0.0) -> float:
    """Seconds since 1970; `default` for what is empty, no time, or a time without its zone."""
    try:
        time = datetime.fromisoformat(rfc3339)
    except ValueError:
        return default
    return time.timestamp() if time.tzinfo else default
