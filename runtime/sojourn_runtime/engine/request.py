"""What a client asked for, frozen, and how far the engine is with it.

Pure values. `Request` is what the journal and the snapshot keep; `Progress` is what a step changes.
How tokens become text belongs to `detokenize`, who reads them to `stream`.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from sojourn_runtime.engine.prefix import Entry


class Finish(IntEnum):
    """Why a request made its last token; the number is what the journal holds."""

    NONE = 0
    STOP = 1
    """An end-of-sequence token, or a stop string or token of the request."""
    LENGTH = 2
    """`max_tokens`, or the end of the context."""
    CANCELLED = 3
    ERROR = 4

    @property
    def word(self) -> str:
        """As OpenAI's `finish_reason` spells it (`cancelled` and `error` have no word there)."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen; the defaults are OpenAI's.

    Every choice is a function of (logits, these, position), so nothing of it needs saving but the
    seed: None means "draw one", which the session does before the request is journalled.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 means off."""
    min_p: float = 0.0
    seed: int | None = None
    choice: int = 0
    """Number among the `n` choices of one call: equal seeds of different choices differ."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    """None: none. 0: of the token chosen. n: also those of the n likeliest."""
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    grammar: str = ""
    """Constraint of structured output, opaque here: the session's `grammars` understands it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to be continued; a call with `n` choices is n requests."""

    id: str
    """Unique in the session, also across pauses (`resp_...`, `chatcmpl-...-0`)."""
    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    """As vLLM's field: 0 is the tier's own, larger is less important, negative is capped to 0."""
    background: bool = False
    """True: no reader is needed, not even after a resume (OpenAI's `background`)."""
    conversation: str = ""
    """Conversation or response it belongs to; counted in the status, otherwise opaque."""
    salt: str = ""
    """Requests of different salts never share cached blocks."""
    meta: str = ""
    """Opaque text of the server (JSON), kept with the request and given back after a resume."""


@dataclass(slots=True)
class Origin:
    """Where the context of a request was found when it began, in tokens; the rest was computed."""

    device: int = 0
    host: int = 0
    store: int = 0

    @property
    def total(self) -> int:
        return self.device + self.host + self.store

    def __add__(self, other: "Origin") -> "Origin":
        return Origin(
            device=self.device + other.device,
            host=self.host + other.host,
            store=self.store + other.store,
        )

    def cut(self, tokens: int) -> None:
        """No more than so many were found after all: what came from farthest failed."""
        self.store = min(self.store, max(0, tokens - self.device - self.host))
        self.host = min(self.host, max(0, tokens - self.device))
        self.device = min(self.device, tokens)


@dataclass(slots=True, eq=False)
class Progress:
    """Where the engine is with a request: it lets `computed` catch up with `total`.

    The tokens are prompt and output so far; the last one sampled is in `tokens` but not computed.
    """

    request: Request
    root: bytes
    """Name of the parent of its first block."""
    priority: int
    arrival: int
    """Number of the request in order of arrival: the tie-break among equals."""
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    """Tokens whose KV is in `blocks`."""
    blocks: list[int] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    """Names of the full blocks of `tokens` (see `prefix`), made when they are needed."""
    started: bool = False
    """It has held blocks before: parked ones come back before unstarted ones of their tier."""
    waited: int = 0
    """Steps spent waiting since it last ran: aging."""
    ran: int = 0
    """Steps since it was admitted."""
    held: bool = False
    """Its reader lags: it skips steps, and keeps its blocks while nobody needs them."""
    parks: int = 0
    origin: Origin | None = None
    """None before it was first admitted."""
    pins: list[Entry] = field(default_factory=list)
    """What it will come back for, and the host must not drop meanwhile."""
    ahead: set[bytes] = field(default_factory=set)
    """Names of the blocks that were fetched from the store before it ran."""
    looked: bool = False
    """The store was searched for its blocks while it waited."""
    finish: Finish = Finish.NONE

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def total(self) -> int:
        """Tokens known: prompt and output."""
        return len(self.tokens)

    @property
    def output(self) -> list[int]:
        """Token ids made so far."""
        return self.tokens[len(self.request.prompt) :]
