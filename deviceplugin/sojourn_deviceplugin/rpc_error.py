"""The server's words in a failed gRPC call; grpcio's types do not say that errors carry them."""


def details(error: Exception) -> str:
    """What the other side said, or the error itself."""
    words = getattr(error, "details", None)
    return str(words()) if callable(words) else str(error)
