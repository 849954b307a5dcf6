"""Remembers of which sessions nothing has to be done, until something of their scene changes.

Thousands of sessions serve and ask for nothing: each pass looks at those that changed. Forgetting
is always safe, for a look may be taken twice.
"""

from collections.abc import Container

from sojourn_operator.session.scene import Scene, Step


class Still:
    """What each session looked like when its step was to do nothing."""

    def __init__(self) -> None:
        self._known: dict[str, Scene] = {}

    def holds(self, key: str, scene: Scene) -> bool:
        """Whether nothing has changed since a look at the session asked for nothing."""
        return self._known.get(key) == scene

    def note(self, key: str, scene: Scene, step: Step) -> None:
        """Remember a step that asks for nothing, and has no deadline for asking later.

        What is ending is looked at every time: there the clock alone may ask for a step.
        """
        ending = scene.session.meta.deleting or any(pod.deleting for pod in scene.pods)
        if not ending and step.deadline is None and not step.asks(scene.status):
            self._known[key] = scene
        else:
            self._known.pop(key, None)

    def keep(self, keys: Container[str]) -> None:
        """Forget all other sessions."""
        for key in [key for key in self._known if key not in keys]:
            del self._known[key]
