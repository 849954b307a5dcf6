"""A session of `transformers`: yields to higher tiers, is paused by SIGTERM, goes on exactly.

    python examples/transformers_session.py --model FOLDER --store FOLDER --prompt "Once upon"

Stop it with SIGTERM and start it again with the same store: the text goes on where it stood. The
KV cache, the ids and the generator's state are saved, so nothing is computed again, and the next
token is chosen as it would have been (on the same machine; other kernels round differently).
"""

import argparse
import os
from pathlib import Path
from typing import Any

from sojourn_runtime.guest import Guest, Next

# torch and transformers are imported where they are used: the guest comes first, since from there
# on a SIGTERM is a pause.


class Generation:
    """One text, as it can be saved between any two tokens."""

    def __init__(self, model: Any, ids: list[int], *, seed: int) -> None:
        import torch

        self.model, self.ids = model, ids
        self.cache: Any = None
        self.generator = torch.Generator().manual_seed(seed)

    def step(self) -> int:
        """One forward pass over what is not in the cache yet, and the next token."""
        import torch

        done = self.cache.get_seq_length() if self.cache is not None else 0
        with torch.no_grad():
            found = self.model(
                input_ids=torch.tensor([self.ids[done:]]),
                past_key_values=self.cache,
                use_cache=True,
            )
        self.cache = found.past_key_values
        chances = torch.softmax(found.logits[0, -1].float(), dim=-1)
        self.ids.append(int(torch.multinomial(chances, 1, generator=self.generator)))
        return self.ids[-1]

    def save(self, folder: Path) -> int:
        """All of it, or the former; the bytes written."""
        import torch

        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / "context.draft"
        layers = [(layer.keys, layer.values) for layer in self.cache.layers] if self.cache else []
        state = {"ids": self.ids, "layers": layers, "generator": self.generator.get_state()}
        with draft.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / "context.pt")
        return (folder / "context.pt").stat().st_size

    @classmethod
    def load(cls, model: Any, folder: Path) -> "Generation":
        import torch
        from transformers import DynamicCache

        state = torch.load(folder / "context.pt", weights_only=True)
        made = cls(model, list(state["ids"]), seed=0)
        made.generator.set_state(state["generator"])
        if state["layers"]:
            made.cache = DynamicCache()
            for number, (keys, values) in enumerate(state["layers"]):
                made.cache.update(keys, values, number)
        return made


def run(guest: Guest, text: Generation, folder: Path, *, tokens: int) -> bool:
    """Up to so many ids in all; False if it was paused before."""
    with guest.request():
        while len(text.ids) < tokens:
            match guest.boundary():
                case Next.PAUSE:
                    size = text.save(folder)
                    snapshot = {"uri": folder.as_uri(), "tokens": len(text.ids), "bytes": size}
                    guest.paused(snapshot, exact=True)
                    return False
                case Next.CHECKPOINT:
                    text.save(folder)
                case Next.GO:
                    pass
            text.step()
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of a Hugging Face model")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--priority", type=int, default=500)
    given = parser.parse_args()
    guest = Guest(session="example", priority=given.priority)
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(given.model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.model)
    folder = given.store.resolve()
    if (folder / "context.pt").exists():
        text = Generation.load(model, folder)
    else:
        text = Generation(model, list(tokenizer(given.prompt)["input_ids"]), seed=7)
    if run(guest, text, folder, tokens=given.tokens):
        print(tokenizer.decode(text.ids))


if __name__ == "__main__":
    main()
