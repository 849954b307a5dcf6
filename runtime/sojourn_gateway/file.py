"""Sessions from a YAML file, for use without Kubernetes: `sessions: {NAMESPACE/NAME: http://...}`.

The file is read again when it changes; whether a session answers, its status page says.
"""

import asyncio
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
from sojourn_api import names

from sojourn_gateway.directory import Directory
from sojourn_gateway.metrics import Metrics
from sojourn_gateway.session import API, Session, from_page

log = logging.getLogger(__name__)

KEY: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z]([-a-z0-9]*[a-z0-9])?")
SECONDS: Final = 0.5
"""Between two looks at the file and the status pages: how late a resume may be seen."""
PATIENCE: Final = aiohttp.ClientTimeout(total=2)
MOST_BYTES: Final = 1024 * 1024
"""Of a status page, which has some 1,500."""


class FileError(Exception):
    """The file cannot be used; the message names it, the key, and what to write."""


def parse(text: str, *, source: str) -> dict[str, str]:
    """Base URLs, without /v1, by NAMESPACE/NAME."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise FileError(f"{source}: cannot be read as YAML: {error}") from error
    sessions = raw.get("sessions") if isinstance(raw, Mapping) else None
    if not isinstance(sessions, Mapping):
        raise FileError(f"{source}: write `sessions: {{NAMESPACE/NAME: http://HOST:PORT}}`")
    found = {}
    for key, url in sessions.items():
        if not KEY.fullmatch(str(key)):
            raise FileError(f"{source}: sessions: {key!r} is not NAMESPACE/NAME")
        if not re.fullmatch(r"https?://[^/\s]+(/v1)?/?", str(url)):
            raise FileError(f"{source}: sessions: {key}: {url!r} is not http://HOST:PORT")
        found[str(key)] = str(url).rstrip("/").removesuffix(API)
    return found


class FileSource:
    """A task that runs as long as the gateway."""

    def __init__(
        self, path: Path, http: aiohttp.ClientSession, directory: Directory, metrics: Metrics
    ) -> None:
        self._path = path
        self._http = http
        self._directory = directory
        self._metrics = metrics
        self._stamp = (0, 0)
        self._urls: dict[str, str] = {}
        self._complaint = ""

    def read(self) -> None:
        """The file, if it is another than before; FileError."""
        try:
            facts = self._path.stat()
            stamp = (facts.st_mtime_ns, facts.st_size)
            if stamp != self._stamp:
                self._urls = parse(self._path.read_text(), source=str(self._path))
                self._stamp = stamp
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"{self._path}: {error}") from error

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                self.read()
                self._complaint = ""
            except FileError as error:
                self._complain(str(error))
            looks = (self._look(key, url) for key, url in self._urls.items())
            self._directory.replace(await asyncio.gather(*looks))
            await asyncio.sleep(SECONDS)

    def _complain(self, text: str) -> None:
        """Once, not twice a second."""
        if text != self._complaint:
            self._complaint = text
            self._metrics.source_errors.inc()
            log.warning("%s; going on with what it said before", text)

    def wake(self, session: Session) -> None:
        """Nobody pauses such a session for idleness, so none sleeps."""

    async def _look(self, key: str, url: str) -> Session:
        page: dict[str, Any] | None = None
        try:
            async with self._http.get(url + names.PATH_STATUS, timeout=PATIENCE) as answer:
                read = json.loads(await answer.content.read(MOST_BYTES))
                page = read if answer.ok and isinstance(read, dict) else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            pass  # it is paused or not there: said as such
        return from_page(key, url, page)
