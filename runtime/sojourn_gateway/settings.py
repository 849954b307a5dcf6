"""What the gateway is started with: flags, all with defaults. Pure."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The defaults are those of the chart; each field is a flag, told by HELP."""

    host: str = ""
    port: int = 8080
    sessions: str = ""
    hold_seconds: float = 60.0
    splice_seconds: float = 600.0
    most_open: int = 1024
    most_held: int = 256
    most_held_per_session: int = 32
    body_bytes: int = 8 * MIB
    bodies_bytes: int = 128 * MIB
    body_seconds: float = 30.0
    linger_seconds: float = 3.0
    drain_seconds: float = 20.0

    @property
    def file(self) -> Path | None:
        """Where sessions are listed, without Kubernetes."""
        return Path(self.sessions) if self.sessions else None


HELP: Final = {
    "host": "address to listen on; empty is every one",
    "port": "port to listen on; 0 is any free one",
    "sessions": "YAML file of sessions, for use without Kubernetes",
    "hold_seconds": "how long a request waits for its session before 503",
    "splice_seconds": "how long an open stream waits for its session",
    "most_open": "requests under way at once, open streams among them",
    "most_held": "requests that wait at once",
    "most_held_per_session": "of these, requests for one session",
    "body_bytes": "largest body of a request",
    "bodies_bytes": "memory of all bodies at once",
    "body_seconds": "how long a client may take to send a body",
    "linger_seconds": "at the end: how long to take requests while the gateway is not ready",
    "drain_seconds": "at the end: how long open answers may go on",
}


def parse(arguments: Sequence[str]) -> Settings:
    """Ends the process with a message for what cannot be used."""
    parser = argparse.ArgumentParser(
        prog="sojourn-gateway", description="The sessions' front door."
    )
    for field in fields(Settings):
        default = getattr(Settings(), field.name)
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(default),
            default=default,
            help=f"{HELP[field.name]} (default: {default!r})",
        )
    found = Settings(**vars(parser.parse_args(arguments)))
    for field in fields(Settings):
        value = getattr(found, field.name)
        if not isinstance(value, str) and not value >= 0:
            parser.error(
                f"--{field.name.replace('_', '-')} must not be less than 0, but is {value}"
            )
    return found
