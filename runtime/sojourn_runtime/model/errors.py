"""What can be wrong with a model, each with the one-word reason that status and termination
message carry.

Every message names the object, what is wrong with it, and what to do.
"""

from typing import Any, ClassVar

from sojourn_api import names


class ModelError(Exception):
    """A model that cannot be run as it is."""

    reason: ClassVar[str] = "UnsupportedModel"
    retry: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        """From one shard to another by its words, whatever they were made of."""
        return _again, (type(self), str(self))


def _again(kind: type[ModelError], text: str) -> ModelError:
    return kind.__new__(kind, text)


class ModelNotFound(ModelError):  # noqa: N818 - named as the reason is
    """No file where the URI points."""

    reason = "ModelNotFound"


class WeightsUnreachable(ModelNotFound):
    """The place of the weights does not answer, or not to us."""

    retry = True


class WeightsTruncated(ModelError):  # noqa: N818
    """A file shorter than its own header says, or empty."""

    reason = "WeightsTruncated"


class UnknownWeightsFormat(ModelError):  # noqa: N818
    """A file that was never weights, or is of a kind that is not read here."""

    reason = "UnknownWeightsFormat"

    def __init__(self, path: object, why: str) -> None:
        super().__init__(
            f"{path}: {why}; weights are a GGUF file, or a Hugging Face folder with config.json, "
            "tokenizer.json and *.safetensors files; correct LLMModel.spec.uri or convert them"
        )


class WeightsDigestMismatch(ModelError):  # noqa: N818
    """Other bytes than the LLMModel names."""

    reason = "WeightsDigestMismatch"


class ModelMismatch(ModelError):  # noqa: N818
    """The LLMModel says other numbers of the weights, and sessions would be placed by them."""

    reason = names.MODEL_MISMATCH


class UnsupportedModel(ModelError):  # noqa: N818
    """An architecture, rope, quantisation or tokenizer that this runtime does not know."""

    reason = "UnsupportedModel"


class InvalidConfiguration(ModelError):  # noqa: N818
    """A setting of the pod that cannot work here: threads, device, cache folder."""

    reason = "InvalidConfiguration"


class ShardLost(ModelError):  # noqa: N818
    """One of the processes that compute a model together is gone, or does not answer."""

    reason = "ShardLost"
    retry = True
