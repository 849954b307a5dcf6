"""A real session is paused, killed and started again behind the gateway; its client sees nothing.

The client is OpenAI's, the model SmolLM2, every part a process of its own.
"""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from gatewayrig import KEY, GatewayProcess
from pods import Pod

pytestmark = pytest.mark.timeout(300)

NewGateway = Callable[..., GatewayProcess]
ASKED: Any = {"input": "Tell me a story about a dog.", "max_output_tokens": 80, "temperature": 0.8}
SEED: Any = {"extra_body": {"seed": 7}}


@pytest.fixture
def door(gateway: NewGateway, pod: Pod, tmp_path: Path) -> GatewayProcess:
    """The gateway in front of the session, which serves."""
    pod.start()
    return gateway(f"--sessions={sessions_file(pod, tmp_path)}")


def sessions_file(pod: Pod, folder: Path) -> Path:
    table = folder / "sessions.yaml"
    table.write_text(f"sessions: {{{KEY}: 'http://127.0.0.1:{pod.port}'}}\n")
    return table


def client(door: GatewayProcess, path: str = "") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{door.url}{path}/v1",
        api_key="any",
        max_retries=0,
        _strict_response_validation=True,
    )


async def again(pod: Pod, number: signal.Signals) -> None:
    """The session goes away and comes back, as in a pause or a crash."""
    pod.signal(number)
    code, _ = await asyncio.to_thread(pod.ended)
    assert code == (0 if number is signal.SIGTERM else -number)
    await asyncio.to_thread(pod.start)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("background", [False, True])
async def test_a_response_goes_on_over_pauses_as_if_there_were_none(
    door: GatewayProcess, pod: Pod, number: signal.Signals, *, background: bool
) -> None:
    async with client(door) as openai_client:
        whole = await openai_client.responses.create(model=KEY, **ASKED, **SEED)
        stream = await openai_client.responses.create(
            model=KEY, **ASKED, **SEED, stream=True, background=background
        )
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if event.sequence_number in (12, 40):
                await again(pod, number)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert events[-1].response.output_text == whole.output_text
    assert door.metric('splices_total{outcome="spliced"}') == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_chat_goes_on_over_pauses_as_if_there_were_none(
    door: GatewayProcess, pod: Pod, number: signal.Signals
) -> None:
    asked: Any = {
        "messages": [{"role": "user", "content": "Tell me a story about a dog."}],
        "max_tokens": 60,
        "temperature": 0.8,
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with client(door, f"/{KEY}") as openai_client:
        whole = [
            c async for c in await openai_client.chat.completions.create(model="smol", **asked)
        ]
        cut: list[Any] = []
        async for chunk in await openai_client.chat.completions.create(model="smol", **asked):
            cut.append(chunk)
            if len(cut) in (1, 30):
                await again(pod, number)
    assert len({chunk.id for chunk in cut}) == 1
    assert [chunk.choices for chunk in cut] == [chunk.choices for chunk in whole]
    assert cut[-1].usage.completion_tokens == whole[-1].usage.completion_tokens
    assert door.metric('splices_total{outcome="spliced"}') == 2


async def test_a_client_goes_on_through_another_replica_when_its_own_ends(
    gateway: NewGateway, pod: Pod, tmp_path: Path
) -> None:
    pod.start()
    flag = f"--sessions={sessions_file(pod, tmp_path)}"
    one, two = gateway(flag, "--drain-seconds=0"), gateway(flag)
    events: list[Any] = []
    async with client(one) as openai_client, client(two, f"/{KEY}") as other:
        whole = await other.responses.create(model="smol", **ASKED, **SEED)
        stream = aiter(
            await openai_client.responses.create(
                model=KEY, **ASKED, **SEED, stream=True, background=True
            )
        )
        events.append(await anext(stream))
        one.process.terminate()
        with pytest.raises(openai.APIConnectionError):
            events.extend([event async for event in stream])
        rest = await other.responses.retrieve(
            events[0].response.id, stream=True, starting_after=events[-1].sequence_number
        )
        events += [event async for event in rest]
    assert one.process.wait(60) == 0
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == whole.output_text


async def test_a_request_to_a_paused_session_waits_until_it_is_back(
    door: GatewayProcess, pod: Pod
) -> None:
    await asyncio.to_thread(pod.pause)
    async with client(door) as openai_client:
        asked = asyncio.create_task(openai_client.responses.create(model=KEY, **ASKED, **SEED))
        await asyncio.to_thread(door.until, lambda: door.metric("held") == 1, "held")
        await asyncio.to_thread(pod.start)
        assert (await asked).output_text
        assert door.metric("held") == 0
        assert [model.id async for model in openai_client.models.list()] == [KEY]


async def test_a_whole_answer_cut_by_a_pause_comes_once_after_it(
    door: GatewayProcess, pod: Pod
) -> None:
    async with client(door) as openai_client:
        whole = await openai_client.responses.create(model=KEY, **ASKED, **SEED)
        await asyncio.to_thread(pod.until, lambda: pod.status()["requestsRunning"] == 0, "idle")
        asked = asyncio.create_task(openai_client.responses.create(model=KEY, **ASKED, **SEED))
        await asyncio.to_thread(pod.until, lambda: pod.status()["requestsRunning"], "running")
        await again(pod, signal.SIGTERM)
        assert (await asked).output_text == whole.output_text


async def test_a_client_that_goes_away_ends_its_request_at_the_session(
    door: GatewayProcess, pod: Pod
) -> None:
    async with client(door) as openai_client:
        stream = await openai_client.responses.create(
            model=KEY, input="Count.", max_output_tokens=4000, stream=True
        )
        await anext(aiter(stream))
        assert pod.status()["requestsRunning"] == 1
        await stream.close()
    await asyncio.to_thread(
        pod.until, lambda: pod.status()["requestsRunning"] == 0, "without requests"
    )


def test_the_file_of_sessions_is_read_again_when_it_changes(
    door: GatewayProcess, pod: Pod, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{pod.port}"
    (tmp_path / "sessions.yaml").write_text(f"sessions: {{a/b: '{url}', a/c: '{url}'}}")
    door.until(lambda: door.models() == ["a/b", "a/c"], "read again")
    (tmp_path / "sessions.yaml").write_text("sessions: {nonsense: 1}")
    door.until(lambda: door.metric("source_errors_total") == 1, "complained")
    assert door.models() == ["a/b", "a/c"]
    assert door.get("/readyz")[0] == 200
    assert door.stop() == 0
