"""Keys, percentiles, pages and sampling parameters: the small pure parts of the server."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from openai.types.conversations import ConversationItemList
from pydantic import TypeAdapter
from sojourn_api import names
from sojourn_runtime.context.conversation import FunctionCall, FunctionOutput, Item, Message, Role
from sojourn_runtime.engine.request import Finish, Origin
from sojourn_runtime.server.app import ABSENT
from sojourn_runtime.server.auth import Guard
from sojourn_runtime.server.bodies import page
from sojourn_runtime.server.book import MOST_RESPONSES
from sojourn_runtime.server.errors import ApiError
from sojourn_runtime.server.fields import Fields
from sojourn_runtime.server.metrics import OF_VLLM, Metrics, Stopwatch
from sojourn_runtime.server.params import fit, read_sampling
from sojourn_runtime.session import Phase
from sojourn_runtime.stats import HAND_OVER
from sojourn_runtime.stream import TokenEvent


def test_every_phase_in_which_it_does_not_serve_is_known_to_who_waits_for_it() -> None:
    phases = set(get_args(Phase)) - {names.PHASE_SERVING}
    assert {phase.lower() for phase in phases} == names.NOT_NOW


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer k2", "Basic k", "k"])
def test_a_wrong_key_is_401(header: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        Guard("k").check(path="/v1/models", authorization=header)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("key", "path", "header"),
    [
        ("k", "/v1/models", "Bearer k"),
        ("k", "/v1/models", "bearer  k "),
        ("ü", "/v1/models", "Bearer ü"),
        ("k", "/healthz", None),
        ("", "/v1/models", None),
    ],
)
def test_the_key_opens_and_probes_need_none(key: str, path: str, header: str | None) -> None:
    Guard(key).check(path=path, authorization=header)


def metrics_of(gauges: Callable[[], Mapping[str, float]]) -> Metrics:
    """Of a model `m`, while nothing was handed over."""
    return Metrics(gauges, model="m", hand_over=lambda: ([0] * (len(HAND_OVER) + 1), 0.0))


def test_a_stopwatch_times_first_token_and_gaps() -> None:
    now = [0.0]
    metrics = metrics_of(dict)
    watch = Stopwatch(metrics, clock=lambda: now[0])
    for at, position in ((0.5, 0), (0.75, 1), (1.75, 2)):
        now[0] = at
        watch.tokens([TokenEvent(position=position, token=1, text="")])
    shown = metrics.render()
    assert b'vllm:time_to_first_token_seconds_sum{model_name="m"} 0.5' in shown
    assert b'vllm:inter_token_latency_seconds_sum{model_name="m"} 1.25' in shown
    assert b'vllm:inter_token_latency_seconds_count{model_name="m"} 2.0' in shown


def test_a_stopwatch_does_not_time_what_was_there_before() -> None:
    metrics = metrics_of(dict)
    watch = Stopwatch(metrics, seen=2, clock=lambda: 1.0)
    last = TokenEvent(position=2, token=1, text="", finish=Finish.STOP)
    watch.tokens([TokenEvent(position=0, token=1, text=""), last])
    shown = metrics.render()
    assert b'vllm:time_to_first_token_seconds_count{model_name="m"} 0.0' in shown
    assert b'vllm:request_success_total{finished_reason="stop",model_name="m"} 1.0' in shown


def test_the_sessions_numbers_are_shown_under_its_names() -> None:
    shown = metrics_of(lambda: {"kv_blocks_used": 3, "starts_total": 2}).render()
    assert b"# TYPE sojourn_kv_blocks_used gauge\nsojourn_kv_blocks_used 3.0" in shown
    assert b"# TYPE sojourn_starts_total counter\nsojourn_starts_total 2.0" in shown


def test_what_vllm_counts_too_has_its_names() -> None:
    """As `vllm/v1/metrics/loggers.py` has them in 0.32."""
    metrics = metrics_of(lambda: dict.fromkeys(OF_VLLM, 1.5))
    metrics.prompt(tokens=7, cached=3, origin=Origin(host=3))
    metrics.finished("cancelled", seconds=2.0)
    shown = metrics.render().decode()
    for name, value in {
        "num_requests_running": 1.5,
        "num_requests_waiting": 1.5,
        "num_preemptions_total": 1.5,
        "kv_cache_usage_perc": 1.5,
        "generation_tokens_total": 1.5,
        "prompt_tokens_total": 7.0,
        "prompt_tokens_cached_total": 3.0,
        "prefix_cache_queries_total": 7.0,
        "prefix_cache_hits_total": 3.0,
        "e2e_request_latency_seconds_sum": 2.0,
    }.items():
        assert f'\nvllm:{name}{{model_name="m"}} {value}\n' in shown, name
    assert 'vllm:request_success_total{finished_reason="abort",model_name="m"} 1.0' in shown
    assert 'sojourn_prompt_tokens_by_source_total{source="host"} 3.0' in shown


def test_the_documentation_names_all_that_answers_501() -> None:
    page = (Path(__file__).parents[3] / "docs" / "openai-api.md").read_text()
    section = page.partition("## What is not there")[2]
    assert [family for family in ABSENT if family not in section] == []
    assert f"the newest {MOST_RESPONSES} responses" in page


ITEMS: list[Item] = [
    Message(id="a", role=Role.USER, texts=("1",)),
    Message(id="b", role=Role.ASSISTANT, texts=("2",), complete=False),
    FunctionCall(id="c", call_id="x", name="f", arguments="{}"),
    FunctionOutput(id="d", call_id="x", output="3"),
]


def ids(body: Any) -> list[str]:
    return [item["id"] for item in body["data"]]


def test_pages_join_to_the_whole_in_both_orders() -> None:
    for newest_first, expected in ((False, ["a", "b", "c", "d"]), (True, ["d", "c", "b", "a"])):
        first: Any = page(ITEMS, after=None, limit=3, newest_first=newest_first)
        after = first["last_id"]
        second: Any = page(ITEMS, after=after, limit=3, newest_first=newest_first)
        assert ids(first) + ids(second) == expected
        assert (first["has_more"], second["has_more"]) == (True, False)


def test_a_page_is_of_openais_type() -> None:
    body = page(ITEMS, after=None, limit=20, newest_first=False)
    parsed = TypeAdapter(ConversationItemList).validate_python(body, strict=True)
    assert [item.type for item in parsed.data] == [
        "message",
        "message",
        "function_call",
        "function_call_output",
    ]


def test_an_unknown_place_has_no_page() -> None:
    assert page(ITEMS, after="zz", limit=3, newest_first=False) is None


def test_sampling_is_read_with_openais_defaults() -> None:
    params = read_sampling(Fields({}), max_tokens=5, vocabulary=100)
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (1.0, 1.0, 0, None)


def test_sampling_is_read() -> None:
    fields = Fields(
        {
            "temperature": 0,
            "top_k": -1,
            "min_p": 0.1,
            "seed": -1,
            "stop": "x",
            "logit_bias": {"7": -100, "3": 1.5},
            "ignore_eos": True,
            "stop_token_ids": [4],
        }
    )
    params = read_sampling(fields, max_tokens=5, vocabulary=100, logprobs=2)
    assert (params.temperature, params.top_k, params.min_p, params.stop) == (0, 0, 0.1, ("x",))
    assert params.seed is not None
    assert 0 <= params.seed < 2**63
    assert params.logit_bias == ((3, 1.5), (7, -100.0))
    assert (params.ignore_eos, params.stop_tokens, params.logprobs) == (True, (4,), 2)


def room(prompt: int, wanted: int | None, *, clip: bool = False) -> int:
    return fit(prompt=prompt, wanted=wanted, limit=10, param="p", bound="b", clip=clip)


def test_what_is_asked_for_must_fit() -> None:
    assert room(4, 6) == 6
    assert room(4, None) == 6
    assert room(4, 99, clip=True) == 6
    for prompt, wanted, param in ((10, None, "p"), (4, 7, "b")):
        with pytest.raises(ApiError) as caught:
            room(prompt, wanted)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", param)
