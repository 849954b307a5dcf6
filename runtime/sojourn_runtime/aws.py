"""What the environment says of S3-compatible stores beyond what the library reads itself."""

import os


def client_options() -> dict[str, bool]:
    """Plain HTTP only where the endpoint says so."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    return {"allow_http": endpoint.startswith("http://")}
