"""What a session must not forget, as values: its requests with their tokens, and the documents.

A manifest holds all of it, a journal what changed since; `Context.apply` is the one place that says
what a record means, so that a replay and the living session cannot differ. No files here.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from sojourn_runtime.context.journal import Event, TokenRecord
from sojourn_runtime.engine.request import Finish, Request, SamplingParams


@dataclass(slots=True)
class Kept:
    """A request not yet released: journalled under `number`, which is its order of arrival too."""

    number: int
    request: Request
    output: list[int] = field(default_factory=list)
    finish: Finish = Finish.NONE
    computed: int = 0
    """Tokens whose KV existed at the last commit; a hint for reports, never for decisions."""
    logprobs: list[tuple[float, tuple[tuple[int, float], ...]]] = field(default_factory=list)
    """Of each output token, if they were asked for."""
    text: str = ""
    """The request as JSON, made once: prompts are long, and every commit repeats them."""

    def __post_init__(self) -> None:
        self.text = self.text or json.dumps(asdict(self.request), separators=(",", ":"))

    def encode(self) -> str:
        """As a manifest has it."""
        rest = {
            "number": self.number,
            "output": self.output,
            "finish": int(self.finish),
            "computed": self.computed,
            "logprobs": self.logprobs,
        }
        return f'{json.dumps(rest, separators=(",", ":"))[:-1]},"request":{self.text}}}'


@dataclass(frozen=True, slots=True)
class Document:
    """A value of the server, with its JSON made once for journal and manifests."""

    value: Any
    text: str


def document(value: Any) -> Document:
    """A value, encoded."""
    return Document(value, json.dumps(value, separators=(",", ":")))


@dataclass(slots=True)
class Context:
    """Requests by id in order of arrival, documents by kind and id."""

    requests: dict[str, Kept] = field(default_factory=dict)
    documents: dict[str, dict[str, Document]] = field(default_factory=dict)
    numbers: dict[int, Kept] = field(default_factory=dict)
    next_number: int = 0

    def add(self, request: Request) -> Kept:
        """Keep a new request."""
        return self._keep(Kept(self.next_number, request))

    def event(self, kept: Kept) -> Event:
        """What the journal says of a new request."""
        return {"kind": "request", "number": kept.number, "request": asdict(kept.request)}

    def _keep(self, kept: Kept) -> Kept:
        self.requests[kept.request.id] = self.numbers[kept.number] = kept
        self.next_number = max(self.next_number, kept.number + 1)
        return kept

    def release(self, request_id: str) -> None:
        kept = self.requests.pop(request_id, None)
        if kept is not None:
            del self.numbers[kept.number]

    def cancel(self, request_id: str) -> None:
        """It makes no further token, unless it made its last one already."""
        kept = self.requests.get(request_id)
        if kept is not None and kept.finish is Finish.NONE:
            kept.finish = Finish.CANCELLED

    def put(self, kind: str, document_id: str, value: Document) -> None:
        self.documents.setdefault(kind, {})[document_id] = value

    def delete(self, kind: str, document_id: str) -> None:
        self.documents.get(kind, {}).pop(document_id, None)

    def replay(self, records: Iterable[TokenRecord | Event]) -> None:
        """Take in what a journal says."""
        for record in records:
            self.apply(record)

    def apply(self, record: TokenRecord | Event) -> None:
        """One record. Applying it twice is as good as once; a later start's token wins."""
        if isinstance(record, TokenRecord):
            self._token(record)
            return
        match record["kind"]:
            case "request":
                if record["request"]["id"] not in self.requests:
                    self._keep(Kept(record["number"], request_from_json(record["request"])))
            case "release":
                self.release(record["id"])
            case "cancel":
                self.cancel(record["id"])
            case "put":
                self.put(record["type"], record["id"], document(record["value"]))
            case "delete":
                self.delete(record["type"], record["id"])
            case "logprobs":
                self._logprobs(record)

    def _token(self, record: TokenRecord) -> None:
        kept = self.numbers.get(record.number)
        if kept is not None and record.position <= len(kept.output):
            kept.output[record.position :] = [record.token]
            if record.finish or kept.finish is not Finish.CANCELLED:  # a cancel beats going on only
                kept.finish = Finish(record.finish)

    def _logprobs(self, record: Event) -> None:
        kept = self.numbers.get(record["number"])
        if kept is not None and record["position"] <= len(kept.logprobs):
            top = tuple((int(token), float(value)) for token, value in record["top"])
            kept.logprobs[record["position"] :] = [(float(record["logprob"]), top)]

    @property
    def conversations(self) -> int:
        """Stored conversations, and those that running requests belong to."""
        named = {kept.request.conversation for kept in self.requests.values()} - {""}
        return len(named.union(self.documents.get("conversation", {})))


def request_from_json(value: dict[str, Any]) -> Request:
    params = value["params"] | {
        "logit_bias": tuple(
            (int(token), float(bias)) for token, bias in value["params"]["logit_bias"]
        ),
        "stop": tuple(value["params"]["stop"]),
        "stop_tokens": tuple(value["params"]["stop_tokens"]),
    }
    fields = value | {"prompt": tuple(value["prompt"]), "params": SamplingParams(**params)}
    return Request(**fields)


def kept_from_json(value: dict[str, Any]) -> Kept:
    return Kept(
        number=value["number"],
        request=request_from_json(value["request"]),
        output=list(value["output"]),
        finish=Finish(value["finish"]),
        computed=value["computed"],
        logprobs=[(logprob, tuple((t, p) for t, p in top)) for logprob, top in value["logprobs"]],
    )


def restore(requests: Iterable[dict[str, Any]], documents: dict[str, dict[str, Any]]) -> Context:
    """The context as a manifest has it."""
    context = Context()
    for value in requests:
        context._keep(kept_from_json(value))  # noqa: SLF001 - the same module
    for kind, values in documents.items():
        for document_id, value in values.items():
            context.put(kind, document_id, document(value))
    return context
