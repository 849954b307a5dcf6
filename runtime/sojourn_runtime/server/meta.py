"""What the server writes beside a request, and reads again after a pause. Pure."""

import json

from sojourn_runtime.engine.request import Request
from sojourn_runtime.server.chunks import Form


def meta_text(form: Form | None) -> str:
    """`form` of an answer that can be taken up again; None where the client waits for a whole."""
    return json.dumps({"whole": form is None, "form": form and form.to_json()})


STREAMED = json.dumps({"whole": False, "form": None})
"""Of a response whose events can be taken up again by its id."""


def is_whole(request: Request) -> bool:
    """The client waited for the whole answer, without an id to ask for it again."""
    return bool(request.meta) and bool(json.loads(request.meta)["whole"])


def form_of(request: Request) -> Form | None:
    """How the answer looks that the request belongs to."""
    value = json.loads(request.meta)["form"] if request.meta else None
    return None if value is None else Form.from_json(value)
