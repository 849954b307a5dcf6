"""The session as the endpoints need it: the common protocol and what describes the model.

Types only; `protocol` says what the methods promise.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from sojourn_runtime.context.conversation import ChatMessage
from sojourn_runtime.engine.request import Finish
from sojourn_runtime.protocol import SessionPort
from sojourn_runtime.server.errors import Json


class ChatTokenizer(Protocol):
    """Text and messages to token ids and back."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def knows_tools(self) -> bool:
        """The model's chat template shows tools to the model."""

    def encode(self, text: str, /) -> Sequence[int]: ...

    def decode(self, tokens: Sequence[int], /) -> str: ...

    def token(self, token_id: int, /) -> str:
        """The text of one token alone."""

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        /,
        *,
        tools: Sequence[Mapping[str, Json]] | None = None,
    ) -> Sequence[int]:
        """The prompt that makes the model answer; ValueError when the template refuses."""


class Session(SessionPort, Protocol):
    """One model with its conversations."""

    @property
    def model_name(self) -> str: ...

    @property
    def created(self) -> int:
        """Unix seconds; what `/v1/models` tells."""

    @property
    def context_length(self) -> int: ...

    @property
    def tokenizer(self) -> ChatTokenizer:
        """Only when ready."""

    def check_grammar(self, text: str, /) -> None:
        """ValueError if output of this form cannot be had, Refused if none can; may block."""

    def texts(self, tokens: Sequence[int], /, *, finish: Finish) -> Sequence[str]:
        """The `text` of each position, as the events of these tokens had it."""
