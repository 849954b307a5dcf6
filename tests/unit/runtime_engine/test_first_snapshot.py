"""A context in the first form of version 1, byte by byte: every later release reads it.

When the format changes, its version is raised, and what is here stays, beside the new one.
"""

from pathlib import Path

from sojourn_runtime.context.open_store import open_store
from sojourn_runtime.context.snapshot import Identity, load, read_block
from sojourn_runtime.engine.request import Finish, Request, SamplingParams

MANIFEST = (
    '{"v": 1, "session": "s", "epoch": 3, "number": 1, "saved": "2026-12-01T16:18:01.847Z", "'
    'weightsDigest": "sha256:weights", "kernelClass": "class-v1", "blockBytes": 1024,\n'
    '"requests":[{"number":0,"output":[5,6],"finish":0,"computed":3,"logprobs":[[-0.5,[[5,-0.'
    '5]]],[-1.0,[]]],"request":{"id":"r","prompt":[1,2],"params":{"max_tokens":9,"temperature'
    '":1.0,"top_p":1.0,"top_k":0,"min_p":0.0,"seed":7,"choice":0,"presence_penalty":0.0,"freq'
    'uency_penalty":0.0,"repetition_penalty":1.0,"logit_bias":[[1,2.0]],"logprobs":1,"stop":['
    '"a"],"stop_tokens":[3],"ignore_eos":false,"grammar":""},"priority":0,"background":false,'
    '"conversation":"c","salt":"","meta":"{}"}}],\n'
    '"documents":{"response":{"\\u00e4":{"x":[1]}}},\n'
    '"blocks":[\n'
    '["cb69da5dc51141fe5d5d2d8ef7c51c4f","873ac3c6df553eaa62331fd4ff9b521a",'
    f"[{','.join(64 * '1')}]"
    ',"segment-3-1.kv",0,4202832925]]}\n'
    "sha256:d1719a8d23e241df1b2b617119f76871a79d430d0b5917186c0b659a6f911b4d"
)
"""With one request under way, a document, and where a block of 64 tokens lies."""
JOURNAL = (
    "34000000b6ead3c54a7b226b696e64223a22707574222c2274797065223a22726573706f6e736522"
    "2c226964223a2262222c2276616c7565223a327d0e000000065e9af1540000000002000000080000"
    "0000"
)
"""Behind it: another document, and the token 8."""


def test_what_was_saved_in_the_first_form_is_read(tmp_path: Path) -> None:
    (tmp_path / "manifest-3-1.json").write_bytes(MANIFEST.encode())
    (tmp_path / "journal-3-1.log").write_bytes(bytes.fromhex(JOURNAL))
    (tmp_path / "segment-3-1.kv").write_bytes(bytes([1]) * 1024)
    store = open_store(tmp_path.as_uri())
    found = load(store)
    assert found.notes == ()
    assert (found.base, found.last.epoch) == ("manifest-3-1.json", 3)
    assert found.identity == Identity("sha256:weights", "class-v1", 1024)
    (kept,) = found.context.requests.values()
    assert kept.request == Request(
        id="r",
        prompt=(1, 2),
        params=SamplingParams(
            max_tokens=9,
            seed=7,
            logit_bias=((1, 2.0),),
            logprobs=1,
            stop=("a",),
            stop_tokens=(3,),
        ),
        conversation="c",
        meta="{}",
    )
    assert (kept.output, kept.finish, kept.computed) == ([5, 6, 8], Finish.NONE, 3)
    assert kept.logprobs == [(-0.5, ((5, -0.5),)), (-1.0, ())]
    documents = found.context.documents["response"]
    assert {name: each.value for name, each in documents.items()} == {"ä": {"x": [1]}, "b": 2}
    (block,) = found.blocks
    target = memoryview(bytearray(1024))
    read_block(store, block, target)
    assert (bytes(target), block.tokens) == (bytes([1]) * 1024, (1,) * 64)
