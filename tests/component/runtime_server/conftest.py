"""A session without a model, for tests of the server: real streams, a real thread, bytes as tokens.

It says what a test tells it to say, as fast as the test lets it.
"""

import codecs
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from localcluster import models
from openai import AsyncOpenAI
from sojourn_runtime.engine.request import Finish, Origin, Request
from sojourn_runtime.server.app import Server
from sojourn_runtime.stream import Stream, TokenEvent

EOS = 256
MODEL = "bytes"
KEY = "a-key"


class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8."""

    vocab_size = 257
    knows_tools = True

    def encode(self, text: str, /) -> Sequence[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int], /) -> str:
        return bytes(token for token in tokens if token < EOS).decode("utf-8", "replace")

    def token(self, token_id: int, /) -> str:
        return self.decode([token_id])

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Sequence[int]:
        if messages[0]["role"] == "assistant":
            raise ValueError("the first message must not be the assistant's")
        lines = [f"tools: {len(tools)}"] if tools else []
        lines += [f"{message['role']}: {message['content']}" for message in messages]
        return self.encode("\n".join(lines) + "\nassistant:")


class Speller:
    """Text per token of one request; its stop strings are looked for in the simplest way."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = stop
        self._held = ""

    def push(self, token: int) -> tuple[str, bool]:
        """The text that this token makes certain, and whether it completed a stop string."""
        if token != EOS:
            self._held += self._decoder.decode(bytes([token]))
        cuts = [self._held.find(word) for word in self._stop if word in self._held]
        if cuts:
            return self._held[: min(cuts)], True
        hold = max(
            (
                n
                for word in self._stop
                for n in range(1, len(word))
                if self._held.endswith(word[:n])
            ),
            default=0,
        )
        if token == EOS:
            hold = 0
        sure = len(self._held) - hold
        text, self._held = self._held[:sure], self._held[sure:]
        return text, False


@dataclass
class Saved:
    """What outlives a process."""

    requests: list[tuple[Request, list[int]]] = field(default_factory=list)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)


class Talker:
    """The session: one thread appends a token to each request in turn."""

    def __init__(self, saved: Saved | None = None, *, context_length: int = 4096) -> None:
        self.model_name = MODEL
        self.created = 1_700_000_000
        self.context_length = context_length
        self.tokenizer = Bytes()
        self.ready = ""
        self.stalled = ""
        self.pausing = False
        self.reply: Callable[[Request], str] = lambda _: "All is well."
        self.refuse: Exception | None = None
        self.cached = 0
        self._saved = saved or Saved()
        self._streams: dict[str, Stream] = {}
        self._spellers: dict[str, Speller] = {}
        self._allowed: int | None = None
        self._wake = threading.Condition()
        self._end = False
        for request, tokens in self._saved.requests:
            stream = self._streams[request.id] = Stream(request)
            for token in tokens:
                self._append(stream, token)
        self._restored = list(self._streams.values())
        self.moments: list[Saved] = []
        """What a crash right after each write would leave."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    # -- what tests do --

    def allow(self, tokens: int | None) -> None:
        """So many more tokens over all requests; None for as many as there are."""
        with self._wake:
            self._allowed = tokens
            self._wake.notify()

    def pause(self) -> Saved:
        """As SIGTERM does: stop at a token, close the streams, keep the rest."""
        self.pausing = True
        self.ready = "Pausing"
        self.stop()
        saved = Saved(self._tokens(), self._saved.documents)
        for stream in list(self._streams.values()):
            if not stream.done:
                stream.close("Pausing")
        return saved

    def fail(self, cause: Exception) -> None:
        """As an engine does that cannot go on: no more tokens, the streams closed."""
        self.stop()
        for stream in list(self._streams.values()):
            stream.close("Failed", cause)

    def stop(self) -> None:
        with self._wake:
            self._end = True
            self._wake.notify()
        self._thread.join()

    @property
    def running(self) -> list[str]:
        """Requests that go on."""
        return [name for name, stream in self._streams.items() if not stream.done]

    @property
    def kept(self) -> list[str]:
        """Requests not yet released."""
        return list(self._streams)

    def made_all(self) -> None:
        """Waits until no more tokens are allowed."""
        with self._wake:
            assert self._wake.wait_for(lambda: self._allowed == 0, timeout=20)

    def wait_for_lag(self) -> None:
        """Waits until each running request is held up by its reader."""
        self._wait(lambda: bool(self.running) and all(s.lagging() for s in self._streams.values()))

    def wait_until_running(self, requests: int = 1) -> None:
        self._wait(lambda: len(self._streams) >= requests)

    def wait_until_forgotten(self) -> None:
        self._wait(lambda: not self._streams)

    def _wait(self, state: Callable[[], bool]) -> None:
        with self._wake:
            deadline = time.monotonic() + 20
            while not state():
                assert time.monotonic() < deadline
                self._wake.wait(0.005)

    def made(self, request_id: str) -> int:
        return len(self._streams[request_id].events)

    # -- what the server does --

    def submit(self, request: Request) -> Stream:
        if self.refuse is not None:
            raise self.refuse
        stream = self._streams[request.id] = Stream(request)
        self._written()
        with self._wake:
            self._wake.notify()
        return stream

    def cancel(self, request_id: str) -> None:
        stream = self._streams.get(request_id)
        if stream is not None and not stream.done:
            stream.close("Cancelled")

    def release(self, request_id: str) -> None:
        self.cancel(request_id)
        self._streams.pop(request_id, None)
        self._written()

    def stream(self, request_id: str) -> Stream | None:
        return self._streams.get(request_id)

    def restored(self) -> Sequence[Stream]:
        return self._restored

    def put_document(self, kind: str, document_id: str, value: Any) -> None:
        self._saved.documents.setdefault(kind, {})[document_id] = value
        self._written()

    def delete_document(self, kind: str, document_id: str) -> None:
        self._saved.documents.get(kind, {}).pop(document_id, None)
        self._written()

    def _written(self) -> None:
        documents = {kind: dict(found) for kind, found in self._saved.documents.items()}
        self.moments.append(Saved(self._tokens(), documents))

    def _tokens(self) -> list[tuple[Request, list[int]]]:
        streams = list(self._streams.values())
        return [(s.request, [event.token for event in s.events]) for s in streams]

    def documents(self, kind: str) -> Mapping[str, Any]:
        return self._saved.documents.get(kind, {})

    def status(self) -> dict[str, Any]:
        return {"v": 1, "phase": "Serving", "model": MODEL, "latency": None}

    def gauges(self) -> Mapping[str, float]:
        return {"requests_running": len(self.running), "starts_total": 3}

    def hand_over(self) -> tuple[Sequence[int], float]:
        return [*range(11)], 2.5

    def check_grammar(self, text: str, /) -> None:
        if "impossible" in text:
            raise ValueError("nothing is impossible")

    def texts(self, tokens: Sequence[int], *, finish: Finish) -> Sequence[str]:
        del finish
        speller = Speller()
        return [speller.push(token)[0] for token in tokens]

    # -- the thread --

    def _run(self) -> None:
        while True:
            with self._wake:
                # readers that catch up do not tell, so a held request is looked at again
                self._wake.wait_for(lambda: self._end or bool(self._able()), timeout=0.005)
                if self._end:
                    return
                able = self._able()
            for stream in able:
                if self._allowed == 0:
                    break
                script = [*self.reply(stream.request).encode(), EOS]
                self._append(stream, script[len(stream.events) % len(script)])
                if self._allowed is not None:
                    with self._wake:
                        self._allowed -= 1
                        self._wake.notify_all()

    def _able(self) -> list[Stream]:
        if self._allowed == 0:
            return []
        return [s for s in list(self._streams.values()) if not s.done and not s.lagging()]

    def _append(self, stream: Stream, token: int) -> None:
        params = stream.request.params
        position = len(stream.events)
        stream.started = True
        stream.cached_tokens = self.cached
        stream.origin = Origin(device=self.cached // 4, host=self.cached - self.cached // 4)
        speller = self._spellers.setdefault(stream.request.id, Speller(params.stop))
        text, stopped = speller.push(token)
        finish = Finish.NONE
        if stopped or (token == EOS and not params.ignore_eos):
            finish = Finish.STOP
        elif position + 1 >= params.max_tokens:
            finish = Finish.LENGTH
        event = TokenEvent(position=position, token=token, text=text, finish=finish)
        if params.logprobs is not None:
            top = tuple((token, -0.5) for token in range(65, 65 + params.logprobs))
            event = replace(event, logprob=-0.25, top=top)
        stream.put(event)


@dataclass
class Rig:
    """A running server and a client of it."""

    session: Talker
    server: Server
    client: AsyncOpenAI
    url: str


@asynccontextmanager
async def serving(session: Talker, *, api_key: str = KEY, **settings: int) -> AsyncIterator[Rig]:
    server = Server(session, api_key=api_key, max_body_bytes=256 * 1024, **settings)
    await server.start(host="127.0.0.1", port=0)
    server.adopt()
    url = f"http://127.0.0.1:{server.port}"
    try:
        async with AsyncOpenAI(
            base_url=f"{url}/v1", api_key=KEY, max_retries=0, _strict_response_validation=True
        ) as client:
            yield Rig(session=session, server=server, client=client, url=url)
    finally:
        session.pausing = True
        await server.stop()
        session.stop()


@pytest.fixture(scope="session")
def model_file() -> Path:
    """SmolLM2-135M, fetched once per machine."""
    return models.fetch()


@pytest.fixture
def serve() -> Callable[..., AbstractAsyncContextManager[Rig]]:
    return serving


@pytest.fixture
def talker() -> Callable[..., Talker]:
    return Talker


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with serving(Talker()) as running:
        yield running
