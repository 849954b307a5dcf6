"""A pod whose engine is vLLM, on a tiny random model, as `examples/vllm_session.py` runs it.

A program: the folders of the model and of the store are its arguments, and with `pause` as a third
its kubelet tells it to end once it has saved something. It ends with 0 when the texts have ended,
and with 3 behind a pause.
"""

import importlib.util
import os
import signal
import sys
import threading
import time
from pathlib import Path

from sojourn_runtime.guest import Guest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "vllm_session.py"
MOST = 400
PROMPTS = {"a": [5, 6, 7], "b": [9] * 20}

model_folder, store = Path(sys.argv[1]), Path(sys.argv[2])
guest = Guest(
    session="one",
    priority=500,
    checkpoint_tokens=16,
    arbiter=Path("/nowhere"),
    termination=store / "last",
)
spec = importlib.util.spec_from_file_location("vllm_session", EXAMPLE)
assert spec is not None
assert spec.loader is not None
example = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = example
spec.loader.exec_module(example)

from vllm import LLM  # noqa: E402 - a SIGTERM is a pause from before this on

model = LLM(
    model=str(model_folder),
    dtype="bfloat16",
    skip_tokenizer_init=True,
    enforce_eager=True,
    max_model_len=512,
    max_num_seqs=2,
)
texts = example.load(store) or {
    name: example.Text(list(prompt), most=MOST) for name, prompt in PROMPTS.items()
}


def told_to_end() -> None:
    while not (store / "context.json").exists():
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGTERM)


if sys.argv[3:] == ["pause"]:
    threading.Thread(target=told_to_end, daemon=True).start()
how = {"temperature": 0.8, "seed": 3, "ignore_eos": True, "detokenize": False}
done = example.run(guest, model.llm_engine, texts, store, **how)
sys.stdout.flush()
os._exit(0 if done else 3)
