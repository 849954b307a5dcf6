"""What is told of a node's GPUs: a log line and an event for each change, once.

An event for each look would be a flood. Offences are the warden's to tell.
"""

import logging
from collections.abc import Iterable
from typing import Final, Protocol

from sojourn_api.quantity import size

from sojourn_deviceplugin.core import STARTING
from sojourn_deviceplugin.facts import NodeFacts
from sojourn_deviceplugin.metrics import Metrics
from sojourn_deviceplugin.offering import Turn
from sojourn_deviceplugin.offers import Offer

log = logging.getLogger(__name__)

NO_NVML: Final = "NvmlUnavailable"


class Tell(Protocol):
    """`node.Publisher.tell`."""

    def __call__(self, *, reason: str, message: str, warning: bool) -> None: ...


class News:
    """For one thread."""

    def __init__(self, tell: Tell, metrics: Metrics) -> None:
        self._tell = tell
        self._metrics = metrics
        self._error = ""
        self._bare = False
        self._invaded: set[int] = set()

    def nvml(self, facts: NodeFacts) -> None:
        """Say when NVML as a whole fails, whatever GPUs there are, and when it is back."""
        bare = not facts.error and not facts.gpus
        if bare and not self._bare:
            log.info("NVML lists no GPU, so none is offered")
        self._bare = bare
        if bool(facts.error) == bool(self._error):
            return
        self._error = facts.error
        if facts.error:
            log.warning("NVML fails", extra={"error": facts.error})
            self._tell(reason=NO_NVML, message=facts.error, warning=True)
        else:
            log.info("NVML answers")
            self._tell(reason="NvmlAvailable", message="NVML answers again", warning=False)

    def turned(self, turn: Turn) -> None:
        """A GPU's verdict has changed. What NVML does to all of them is told by `nvml`."""
        before, after = turn.before, turn.after
        self._metrics.turned(turn.ordinal, after.reason)
        log.log(
            logging.INFO if after.healthy else logging.WARNING,
            "GPU healthy" if after.healthy else "GPU unhealthy",
            extra={"gpu": turn.ordinal, "reason": after.reason, "detail": after.message},
        )
        starting = after.healthy and before.reason == STARTING
        for_all = after.reason == NO_NVML or (after.healthy and before.reason == NO_NVML)
        if before.reason != after.reason and not starting and not for_all:
            reason = after.reason or "GpuHealthy"
            text = f"gpu-{turn.ordinal} ({turn.uuid}): {after.message or 'can be trusted'}"
            self._tell(reason=reason, message=text, warning=not after.healthy)

    def foreign(self, offers: Iterable[Offer]) -> None:
        """Say when slices go out of service for foreign memory, and when they are back."""
        withdrawn = {o.gpu.ordinal: o for o in offers if o.out and o.foreign_bytes}
        for ordinal in set(withdrawn) - self._invaded:
            offer = withdrawn[ordinal]
            text = f"gpu-{ordinal}: {size(offer.foreign_bytes)} in use above all grants"
            text += f", by {', '.join(offer.foreign_by)}" if offer.foreign_by else ""
            log.warning("foreign memory", extra={"gpu": ordinal, "detail": text})
            self._tell(reason="ForeignMemory", message=text, warning=True)
        for ordinal in self._invaded - set(withdrawn):
            log.info("foreign memory is gone", extra={"gpu": ordinal})
        self._invaded = set(withdrawn)
