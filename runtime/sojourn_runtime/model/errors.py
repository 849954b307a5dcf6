"""What can be wrong with a model, each with the one-word reason that status and termination
message carry.

Every message names the object, what is wrong with it, and what to do.
"""

from typing import ClassVar


class ModelError(Exception):
    """A model that cannot be run as it is."""

    reason: ClassVar[str] = "UnsupportedModel"
    retry: ClassVar[bool] = False


class ModelNotFound(ModelError):  # noqa: N818 - named as the reason is
    """No file where the URI points."""

    reason = "ModelNotFound"


class WeightsUnreachable(ModelNotFound):
    """The place of the weights does not answer, or not to us."""

    retry = True


class WeightsTruncated(ModelError):  # noqa: N818
    """A file shorter than its own header says, or no header at all."""

    reason = "WeightsTruncated"


class WeightsDigestMismatch(ModelError):  # noqa: N818
    """Other bytes than the LLMModel names."""

    reason = "WeightsDigestMismatch"


class UnsupportedModel(ModelError):  # noqa: N818
    """An architecture, rope, quantisation or tokenizer that this runtime does not know."""

    reason = "UnsupportedModel"


class InvalidConfiguration(ModelError):  # noqa: N818
    """A setting of the pod that cannot work here: threads, device, cache folder."""

    reason = "InvalidConfiguration"
