"""What is wrong with a session's numbers: its context length, and its model's against the weights.

Pure. Known before a start, or only once a runtime has read the weights; then the session serves on.
"""

from sojourn_api.objects import Model, Session
from sojourn_api.weights import Difference, Numbers, differences, grave, told

from sojourn_operator import reasons
from sojourn_operator.plan import actions
from sojourn_operator.session.remedies import remedied
from sojourn_operator.session.scene import Doubt, Runtime


def of(
    session: Session, model: Model | None, runtime: Runtime | None, *, never: str = ""
) -> tuple[Doubt, ...]:
    """All that is known, of the LLMModel first; `never`: why the next start finds no place."""
    if model is None:
        return ()
    found = (
        mismatch(model, runtime.weights) if runtime else None,
        too_long(session, model),
        unplaceable(session, never) if never else None,
    )
    return tuple(doubt for doubt in found if doubt is not None)


def mismatch(model: Model, weights: Numbers | None) -> Doubt | None:
    """What the LLMModel says otherwise than its weights do."""
    wrong: tuple[Difference, ...] = ()
    if weights is not None:
        wrong = differences(Numbers.of(model), weights)
    if not wrong:
        return None
    reason = reasons.MODEL_MISMATCH if grave(wrong) else reasons.NUMBERS_DIFFER
    return Doubt(reason, told(model.meta.name, wrong))


def too_long(session: Session, model: Model) -> Doubt | None:
    """A context length that no start of the session can have; it may go on with what it had."""
    wanted, most = session.spec.context_length or 0, model.context_length
    if wanted <= most:
        return None
    served = session.status.context_length
    until = f"; until then the session goes on with {served}" if served else ""
    text = (
        f"spec.contextLength is {wanted}, LLMModel {model.meta.name} has {most}; lower "
        f"spec.contextLength to at most {most}, or leave it out{until}"
    )
    return Doubt(reasons.CONTEXT_TOO_LONG, text)


def unplaceable(session: Session, why: str) -> Doubt:
    """A spec that fits no GPU: the session serves on where it is."""
    text = f"spec applies from the next start, for which there is no place: {why}"
    once = str(session.meta.generation)
    return Doubt(actions.NO_GPU, remedied(actions.NO_GPU, text), same=once)
