"""`sojourn-runtime export`, `import` and `fork`: a saved context from one store to another.

All three copy and verify; they differ in whose the copy is. What is copied how is decided in
`context.transfer`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from sojourn_runtime.context.errors import ContextError
from sojourn_runtime.context.open_store import open_store
from sojourn_runtime.context.transfer import transfer
from sojourn_runtime.settings import SettingsError, session_name

Verb: TypeAlias = Literal["export", "import", "fork"]

WHAT: Final[dict[Verb, str]] = {
    "export": "Copy a session's saved context out of its store, verified.",
    "import": "Copy an exported context into the store of a session that has none, verified.",
    "fork": "Begin a second session where another one's last commit is; both go on by themselves.",
}


def main(verb: Verb, arguments: Sequence[str]) -> int:
    """The exit code; what was copied is one line of JSON."""
    parser = argparse.ArgumentParser(prog=f"sojourn-runtime {verb}", description=WHAT[verb])
    parser.add_argument("source", help="store to read: file:///folder, a path, s3://bucket/prefix")
    parser.add_argument("target", help="store to write; it must hold nothing")
    parser.add_argument(
        "--session", required=verb != "export", default="export", help="whose the copy is"
    )
    given = parser.parse_args(arguments)
    try:
        session = session_name(given.session)
    except SettingsError as error:
        parser.error(str(error))
    try:
        done = transfer(open_store(given.source), open_store(given.target), session=session)
    except ContextError as error:
        sys.stderr.write(f"{error.reason}: {error}\n")
        return 1
    sys.stdout.write(json.dumps(done.to_json()) + "\n")
    return 0
