"""How far the launches may run ahead of the device, so that a yield is prompt."""

import torch

LAYERS_BETWEEN_STOPS = 2
"""With the two that may still run when the flag is read: four layers from flag to stop."""


class Launches:
    """At most two groups of layers wait or run; nothing to do where calls compute at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: torch.cuda.Event | None = None

    def boundary(self) -> None:
        """Between two groups: wait until all but the one just launched are through."""
        if self._device.type != "cuda":
            return
        event = torch.cuda.Event(blocking=True)  # a spinning wait would cost others a core
        event.record()
        if self._before is not None:
            self._before.synchronize()
        self._before = event

    def finish(self) -> None:
        """Wait for everything launched."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
