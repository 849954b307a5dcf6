"""The list of devices of each resource for the kubelet, and the wait for a new one."""

import threading
from collections.abc import Callable

from sojourn_deviceplugin._proto import deviceplugin_v1beta1_pb2 as pb


class Lists:
    """Any thread may call; nothing else is locked meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: dict[str, tuple[int, pb.ListAndWatchResponse]] = {}

    def resources(self) -> tuple[str, ...]:
        """All resources, with healthy devices or without."""
        with self._changed:
            return tuple(self._messages)

    def wait(
        self, resource: str, *, after: int, unless: Callable[[], bool]
    ) -> tuple[int, pb.ListAndWatchResponse]:
        """The list and its version, at once if it is another than `after`, else when it changes.

        `unless` ends the wait; it is looked at after each `wake`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._messages[resource][0] != after or unless())
            return self._messages[resource]

    def wake(self) -> None:
        """Let waiting streams look whether they are still wanted."""
        with self._changed:
            self._changed.notify_all()

    def publish(self, resource: str, new: pb.ListAndWatchResponse) -> None:
        """The kubelet hears of it only if its list changes."""
        with self._changed:
            version, message = self._messages.get(resource, (0, None))
            if new != message:
                self._messages[resource] = (version + 1, new)
                self._changed.notify_all()
