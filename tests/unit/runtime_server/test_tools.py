"""Calls of tools are told from text as both grow, wherever the text is cut into tokens."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from sojourn_runtime.server.tools import Said, Splitter, ToolCall, joined

TWO = (
    'Let me see.<tool_call>\n{"name": "look", "arguments": {"at": "<b>"}}\n</tool_call>\n'
    '<tool_call>{"name": "go", "arguments": "{}"}</tool_call>\n Done.\n'
)
CALLS = (
    ToolCall("call_x_0", name="look", arguments='{"at": "<b>"}'),
    ToolCall("call_x_1", name="go", arguments="{}"),
)


def split(*texts: str) -> Said:
    splitter = Splitter("x", active=True)
    ends = len(texts) - 1
    return joined(splitter.push(text, last=at == ends) for at, text in enumerate(texts))


def test_text_and_calls_come_apart() -> None:
    assert split(TWO) == Said("Let me see.Done.\n", CALLS)


@given(st.lists(st.integers(0, len(TWO)), max_size=12))
def test_it_does_not_matter_where_the_tokens_part(cuts: list[int]) -> None:
    places = sorted({0, *cuts, len(TWO)})
    texts = [TWO[a:b] for a, b in pairwise(places)]
    assert split(*texts) == Said("Let me see.Done.\n", CALLS)


@given(st.lists(st.text("<tool_cal/>{}x ", max_size=6), max_size=20))
def test_what_is_no_call_stays_as_it_was(texts: list[str]) -> None:
    said = split(*texts, "")
    assert said == Said("".join(texts), ())


def test_nothing_of_a_mark_is_shown_before_it_is_clear() -> None:
    splitter = Splitter("x", active=True)
    assert splitter.push("a <tool").text == "a "
    assert splitter.push("box>").text == "<toolbox>"


def test_broken_json_stays_text_and_an_open_end_may_be_a_call() -> None:
    broken = "<tool_call>{oops}</tool_call>"
    assert split(broken) == Said(broken)
    assert split('<tool_call>{"name": "f"}') == Said("", (ToolCall("call_x_0", "f", "{}"),))
    assert split('<tool_call>{"name": ') == Said('<tool_call>{"name": ')


def test_without_tools_all_is_text() -> None:
    assert Splitter("x", active=False).push(TWO, last=True) == Said(TWO)
