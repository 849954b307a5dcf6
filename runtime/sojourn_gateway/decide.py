"""What to do with a call, by what is known of its session. Pure."""

from dataclasses import dataclass
from typing import TypeAlias

from sojourn_gateway.calls import Call
from sojourn_gateway.errors import ApiError, unauthorised, unavailable, unknown
from sojourn_gateway.session import Session


@dataclass(frozen=True, slots=True)
class Forward:
    """The session answers."""

    session: Session


@dataclass(frozen=True, slots=True)
class Hold:
    """It is on its way back, or will be once it is woken."""

    session: Session
    wake: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """Nothing to wait for."""

    error: ApiError


Decision: TypeAlias = Forward | Hold | Refuse


def decide(call: Call, session: Session | None, *, open_stream: bool = False) -> Decision:
    """`open_stream`: the client has a part of the answer already.

    It is then worth waiting for a session that only its owner can bring back.
    """
    if session is None:
        return Refuse(unknown(call.key))
    if session.guarded and not has_key(call):
        # whether it is the right one is for the session to judge; but nobody waits without any
        return Refuse(unauthorised(call.key))
    if session.ready and session.endpoint:
        return Forward(session)
    if session.held_back and not open_stream:
        return Refuse(unavailable(session.reason, session.words, again=False))
    return Hold(session, wake=bool(session.asleep_since))


def has_key(call: Call) -> bool:
    """The call carries something that may be a key."""
    found = (value for name, value in call.headers if name.lower() == "authorization")
    scheme, _, key = next(found, "").partition(" ")
    return scheme.lower() == "bearer" and bool(key.strip())
