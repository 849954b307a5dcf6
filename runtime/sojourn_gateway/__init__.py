"""The front door of all sessions: one address, whichever of them is paused, moves or comes back."""
