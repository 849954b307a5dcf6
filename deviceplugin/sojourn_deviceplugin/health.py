"""Whether a GPU can be trusted, judged from what NVML says and from what has happened to it.

Pure: one step from a state and new facts to the next state and a verdict. After a fault that asks
for a reset, answering is no proof of health: recovery needs what the fault's class asks for.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from sojourn_deviceplugin.facts import RECOVERY_UNKNOWN, GpuFacts, NodeFacts
from sojourn_deviceplugin.xids import Restart, meaning, restart

RECOVERY: Final = {
    1: ("ResetRequired", "reset the GPU"),
    2: ("RebootRequired", "reboot the node"),
    3: ("DrainRequired", "drain peer-to-peer work"),
    4: ("ResetRequired", "drain the node and reset the GPU"),
    5: ("DrainRequired", "recover the IMEX domain"),
    6: ("ResetRequired", "reset the GPU's bus"),
    7: ("RebootRequired", "reboot the system"),
}
"""NVML's recovery actions other than 0, "none"."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` is one word, empty when healthy; the message says what to do."""

    healthy: bool
    reason: str = ""
    message: str = ""


HEALTHY: Final = Verdict(healthy=True)


@dataclass(frozen=True, slots=True)
class Fault:
    """An XID that has condemned the GPU: when (boot and NVML session), and what it asks for."""

    xid: int
    restart: Restart
    boot: str
    session: int


@dataclass(frozen=True, slots=True)
class State:
    """What a GPU's past matters for. `away`: not answering since; `good`: probes passed since."""

    fault: Fault | None = None
    away: bool = False
    asked: bool = False
    """The driver has asked for a recovery since."""
    good: int = 0


@dataclass(frozen=True, slots=True)
class Situation:
    """What is the same for all GPUs of a node at one judgement."""

    node: NodeFacts
    boot: str
    probes: int
    """Good probes in a row that count as recovery where the class allows it."""


def condemn(state: State, xids: Iterable[int], now: Situation) -> State:
    """Take note of XIDs: the gravest stands; those that ask for nothing here leave no trace."""
    for xid in xids:
        kind = restart(xid)
        known = state.fault.restart.severity if state.fault else Restart.APP.severity
        if kind.severity > known:
            fault = Fault(xid=xid, restart=kind, boot=now.boot, session=now.node.session)
            state = State(fault=fault)
        elif state.fault is not None and kind is state.fault.restart:
            state = State(fault=replace(state.fault, session=now.node.session, boot=now.boot))
    return state


def _recovered(state: State, fault: Fault, now: Situation) -> bool:
    if now.boot != fault.boot or state.asked:
        return True  # rebooted, or the driver has withdrawn what it asked for
    match fault.restart:
        case Restart.NODE:
            return False
        case Restart.GPU:
            return state.away or now.node.session != fault.session
        case _:
            return state.good >= now.probes


def _ill(reason: str, message: str) -> Verdict:
    return Verdict(healthy=False, reason=reason, message=message)


def _symptom(facts: GpuFacts | None) -> Verdict | None:
    """What is wrong with the GPU as it looks now, whatever has happened before."""
    if facts is None:
        gone = "NVML does not list it any more; look for XID 79 in the kernel log and reboot"
        return _ill("GpuMissing", gone)
    if facts.error:
        text = f"{facts.error}; look for XIDs in the kernel log, then reset the GPU or the node"
        return _ill("GpuLost", text)
    if facts.recovery not in {RECOVERY_UNKNOWN, 0}:
        reason, act = RECOVERY.get(facts.recovery, ("RecoveryRequired", "see nvidia-smi -q"))
        return _ill(reason, f"driver asks: {act}")
    if facts.remap_failed:
        return _ill("RowRemapFailed", "a memory row could not be remapped; replace the GPU")
    if facts.remap_pending:
        text = "a memory row waits to be remapped; reset the GPU when it is empty"
        return _ill("RowRemapPending", text)
    return None


def judge(state: State, facts: GpuFacts | None, now: Situation) -> tuple[State, Verdict]:
    """One look at a GPU with facts that were not judged before; `facts` None: NVML names it not."""
    if now.node.error:
        return replace(state, good=0), _ill("NvmlUnavailable", now.node.error)
    symptom = _symptom(facts)
    if symptom is None:
        return _after_fault(replace(state, good=state.good + 1), now)
    away = facts is None or bool(facts.error)
    asked = facts is not None and not facts.error and facts.recovery > 0
    state = replace(state, away=state.away or away, asked=state.asked or asked, good=0)
    return state, symptom


def _after_fault(state: State, now: Situation) -> tuple[State, Verdict]:
    fault = state.fault
    if fault is not None:
        if _recovered(state, fault, now):
            return State(good=state.good), HEALTHY
        text = f"{meaning(fault.xid)}; {_advice(fault, now)}"
        return state, _ill(f"Xid{fault.xid}", text)
    if state.away and state.good < now.probes:
        return state, _ill("Returning", f"answers again; waits for {now.probes} good probes")
    return State(good=state.good), HEALTHY


def _advice(fault: Fault, now: Situation) -> str:
    match fault.restart:
        case Restart.NODE:
            return "reboot the node"
        case Restart.GPU:
            return "reset the GPU (nvidia-smi --gpu-reset) or restart the driver"
        case _:
            return f"waits for {now.probes} good probes in a row"
