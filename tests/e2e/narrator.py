"""How the story is printed: chapters, sentences, and commands with what they answer."""

import sys
from dataclasses import dataclass

from kube import Kube


@dataclass(slots=True)
class Narrator:
    """Prints the story, chapter by chapter."""

    kube: Kube
    chapter: int = 0

    def begin(self, title: str) -> None:
        """A new chapter."""
        self.chapter += 1
        bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
        print(f"\n{bold}{self.chapter}. {title}{plain}", flush=True)

    def say(self, text: str) -> None:
        """A sentence of ours."""
        print(f"   {text}", flush=True)

    def show(self, *args: str) -> None:
        """What kubectl prints, with the command as a user would type it."""
        self.answer(f"kubectl {' '.join(args)}", self.kube.kubectl(*args))

    def answer(self, command: str, answer: str) -> None:
        """A command and what it printed."""
        print(f"   $ {command}")
        for line in answer.rstrip().splitlines():
            print(f"     {line}")
        sys.stdout.flush()
