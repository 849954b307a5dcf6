"""A session of vLLM: yields to higher tiers, is paused by SIGTERM, goes on, but not exactly.

    python examples/vllm_session.py --model FOLDER --store FOLDER --prompt "Once upon a time"

vLLM gives its cache to nobody. So a pause aborts the requests and saves the tokens; the next start
asks again, with the prompt and what was made as the new prompt: the context is computed again, by
kernels that round by the batch, and the generator's state is another one. The text that was made
stays; what follows it may differ from what would have followed.
"""

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sojourn_runtime.guest import Guest, Next

# vllm is imported where it is used: the guest comes first, since from there on SIGTERM is a pause.

WHY = "computed again by vLLM, and sampled by another state of its generator"


@dataclass
class Text:
    """A request, as it can be saved between any two steps."""

    prompt: list[int]
    most: int
    made: list[int] = field(default_factory=list)
    done: bool = False


def submit(engine: Any, name: str, text: Text, **sampling: Any) -> None:
    """Ask for what is missing of the text."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=text.most - len(text.made), **sampling)
    engine.add_request(name, {"prompt_token_ids": [*text.prompt, *text.made]}, params)


def save(texts: Mapping[str, Text], folder: Path) -> int:
    """All of them, or the former; the bytes written."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / "context.draft"
    with draft.open("w") as file:
        json.dump({name: asdict(text) for name, text in texts.items()}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / "context.json")
    return (folder / "context.json").stat().st_size


def load(folder: Path) -> dict[str, Text]:
    path = folder / "context.json"
    saved = json.loads(path.read_text()) if path.exists() else {}
    return {name: Text(**value) for name, value in saved.items()}


def run(guest: Guest, engine: Any, texts: dict[str, Text], folder: Path, **sampling: Any) -> bool:
    """All texts to their ends; False if it was paused before."""
    known = {name: len(text.made) for name, text in texts.items() if not text.done}
    for name in known:
        submit(engine, name, texts[name], **sampling)
    with guest.request():
        while engine.has_unfinished_requests():
            running = [name for name in known if not texts[name].done]
            match guest.boundary(tokens=len(running)):
                case Next.PAUSE:
                    engine.abort_request(running)
                    tokens = sum(len(text.prompt) + len(text.made) for text in texts.values())
                    snapshot = {"uri": folder.as_uri(), "tokens": tokens}
                    guest.paused(snapshot | {"bytes": save(texts, folder)}, exact=False, why=WHY)
                    return False
                case Next.CHECKPOINT:
                    save(texts, folder)
                case Next.GO:
                    pass
            for output in engine.step():
                text = texts[output.request_id]
                text.made[known[output.request_id] :] = output.outputs[0].token_ids
                text.done = output.finished
    save(texts, folder)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of a Hugging Face model")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--prompt", action="append", help="one or several")
    parser.add_argument("--tokens", type=int, default=400, help="of each text, at most")
    parser.add_argument("--priority", type=int, default=500)
    given = parser.parse_args()
    guest = Guest(session="example", priority=given.priority)
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # a SIGTERM is for this process
    from vllm import LLM

    model = LLM(model=given.model)
    tokenizer, folder = model.get_tokenizer(), given.store.resolve()
    texts = load(folder) or {
        str(number): Text(list(tokenizer.encode(prompt)), most=given.tokens)
        for number, prompt in enumerate(given.prompt or ["Once upon a time"])
    }
    if run(guest, model.llm_engine, texts, folder):
        for text in texts.values():
            print(tokenizer.decode([*text.prompt, *text.made]))


if __name__ == "__main__":
    main()
