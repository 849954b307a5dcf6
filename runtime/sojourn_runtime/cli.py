"""The commands of the runtime: `serve` (also without a word), `inspect`, `calibrate`, `bench`.

Start-up in the order that counts: SIGTERM's handler, the port, and only then what is heavy. Nothing
is decided here; what went wrong becomes a message, a termination message and an exit code.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sojourn_api import names

from sojourn_runtime.hooks import PauseSwitch, last_word
from sojourn_runtime.settings import ENV_TERMINATION, Settings, SettingsError, parse_settings

if TYPE_CHECKING:
    from sojourn_runtime.session import Ending

log = logging.getLogger("sojourn_runtime")

CONFIGURATION: Final = 2
"""Exit code for what another try cannot change."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code."""
    switch = PauseSwitch()
    switch.install()
    words = list(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    match words:
        case ["inspect", *rest]:
            return _inspect(rest)
        case ["calibrate", *rest]:
            return _calibrate(rest)
        case ["bench", *rest]:
            return _bench(rest)
        case ["serve", *rest]:
            code = _serve(rest, switch)
        case ["export" | "import" | "fork" as verb, *rest]:
            from sojourn_runtime.transfer import main as move  # noqa: PLC0415 - serve needs it not

            return move(verb, rest)
        case _:
            code = _serve(words, switch)
    if arguments is None:
        _leave(code)
    return code


def _leave(code: int) -> NoReturn:
    """End the process at once: all is saved and said, and others wait for the room.

    The interpreter's own end frees object by object, which takes half a second and more.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(arguments: Sequence[str], switch: PauseSwitch) -> int:
    try:
        settings = parse_settings(arguments, os.environ)
    except SettingsError as error:
        path = os.environ.get(ENV_TERMINATION, names.TERMINATION_MESSAGE)
        return _misconfigured(str(error), path)
    try:
        ending = asyncio.run(_session(settings, switch))
    except OSError as error:
        message = f"--port {settings.port}: cannot listen: {error.strerror}; free it or use another"
        return _misconfigured(message, settings.termination_message)
    if ending.paused:
        return 0
    return CONFIGURATION if ending.words["reason"] == "InvalidConfiguration" else 1


def _misconfigured(message: str, path: str) -> int:
    log.error("%s", message)
    words = {"v": 1, "reason": "InvalidConfiguration", "message": message, "retry": False}
    _say(words, path)
    return CONFIGURATION


def _say(words: Mapping[str, Any], path: str) -> None:
    """The termination message, where there is a place for one: a kubelet has made the file."""
    target = Path(path)
    if path != names.TERMINATION_MESSAGE or target.exists():
        try:
            last_word(target, words)
        except OSError as error:
            log.warning("%s: no termination message: %s", path, error.strerror)


async def _session(settings: Settings, switch: PauseSwitch) -> "Ending":
    """Listen, load, serve until the session has ended."""
    from sojourn_runtime.server.app import Server  # noqa: PLC0415 - after the signal handler
    from sojourn_runtime.session import Config, Session  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    over: asyncio.Future[Ending] = loop.create_future()

    def ended(ending: "Ending") -> None:
        _say(ending.words, settings.termination_message)
        loop.call_soon_threadsafe(over.set_result, ending)

    def serving() -> None:
        loop.call_soon_threadsafe(_adopt, server, settings)

    config = Config(
        name=settings.session,
        model_name=settings.model_name,
        store=settings.store,
        epoch=settings.epoch,
        owner=settings.owner,
        expect_manifest=settings.expect_manifest,
        tier=settings.priority,
        checkpoint_tokens=settings.checkpoint_tokens,
        granted=settings.granted,
        host_bytes=settings.host_kv_bytes,
        store_bytes=settings.store_bytes,
    )
    server: Server
    session = Session(
        config,
        open_model=_opener(settings),
        ended=ended,
        serving=serving,
        overdue=lambda words: _say(words, settings.termination_message),
    )
    server = Server(session, api_key=settings.api_key)
    await server.start(host=settings.host, port=settings.port)
    log.info("listening on port %d", server.port)
    session.start()
    switch.then(session.pause)
    ending = await over
    (log.info if ending.paused else log.error)("%s: %s", *_gist(ending.words))
    await server.stop()
    return ending


def _opener(settings: Settings) -> Callable[[], Any]:
    def open_it() -> Any:
        from sojourn_runtime.opening import open_model  # noqa: PLC0415 - the port is bound now

        return open_model(settings)

    return open_it


def _adopt(server: Any, settings: Settings) -> None:
    server.adopt()
    log.info("session %s answers requests", settings.session)


def _gist(words: Mapping[str, Any]) -> tuple[str, str]:
    return str(words["reason"]), str(words["message"])


def _inspect(arguments: Sequence[str]) -> int:
    from sojourn_runtime.model.inspect import main as inspect  # noqa: PLC0415 - serve needs it not

    return inspect(arguments)


def _calibrate(arguments: Sequence[str]) -> int:
    from sojourn_runtime.model.calibrate import main as calibrate  # noqa: PLC0415 - nor this

    return calibrate(arguments)


def _bench(arguments: Sequence[str]) -> int:
    from sojourn_runtime.model.bench import main as bench  # noqa: PLC0415 - nor this

    return bench(arguments)
