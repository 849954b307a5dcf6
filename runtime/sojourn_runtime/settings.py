"""What a pod or a user tells the runtime: flags, and environment variables of the same meaning.

Flags win. Pure: nothing is opened here; what is wrong with a value is said by name.
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn
from urllib.parse import urlsplit

from sojourn_api import names
from sojourn_api.reader import Reader
from sojourn_api.shipped import SHIPPED_TIERS
from sojourn_api.weights import Numbers

from sojourn_runtime.context import layout

ENV_TERMINATION: Final = "SOJOURN_TERMINATION_MESSAGE"
DEFAULT_STORE: Final = "./sojourn-store"
_SLOT: Final = re.compile(names.env_gpu_slot(0).replace("0", r"(\d+)"))
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
HOST_KV: Final = str(256 << 20)
"""Counts in the container's memory limit, so no more than a small pod can spare: a guess."""


class SettingsError(Exception):
    """A flag or variable that cannot be used; the message says which, and what to write."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a session is started with; `context_length` 0 is the model's own."""

    model: str
    model_name: str
    model_numbers: Numbers
    """What the LLMModel says of the weights; zeros say nothing."""
    host: str
    port: int
    store: str
    session: str
    device: str
    quantization: str
    context_length: int
    checkpoint_tokens: int
    epoch: int | None
    owner: str
    expect_manifest: str
    priority: int
    weights_digest: str
    weights_cache: str
    api_key: str
    granted_bytes: int
    granted: tuple[int, ...]
    """Ordinals of the GPUs on which Allocate gave a slot beside others."""
    kv_bytes: int
    host_kv_bytes: int
    store_bytes: int
    threads: int
    shards: int
    termination_message: str


class _Parser(argparse.ArgumentParser):
    """Raises instead of leaving the process: the kubelet wants a termination message as well."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{self.prog}: {message}; see {self.prog} --help")


def _parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="sojourn-runtime serve",
        description="Serve one model with a context that survives its process.",
    )

    def flag(name: str, variable: str, default: str, text: str) -> None:
        given = env.get(variable) or default
        parser.add_argument(name, default=given, help=f"{text} [{variable}] (default: {default!r})")

    flag("--model", names.ENV_MODEL, "", "path or URI of the weights")
    flag("--model-name", names.ENV_MODEL_NAME, "", "what clients send as `model`")
    flag("--model-numbers", names.ENV_MODEL_NUMBERS, "", "what the weights must be, as JSON")
    flag("--host", "SOJOURN_HOST", "", "address to listen on; empty is every one")
    flag("--port", names.ENV_PORT, str(names.PORT), "port to listen on")
    flag("--store", names.ENV_STORE, "", "folder or URI of the saved context")
    flag("--session", names.ENV_SESSION, "default", "name of the session")
    flag("--device", names.ENV_DEVICE, "cpu", "cpu, cpu-amx, cuda, eager or cuda-eager")
    flag("--quantization", names.ENV_QUANTIZATION, "bf16", "bf16, w8a16, w8a8 or a plan's path")
    flag("--context-length", names.ENV_CONTEXT_LENGTH, "0", "tokens; 0 is the model's own")
    flag("--checkpoint-tokens", names.ENV_CHECKPOINT_TOKENS, "256", "tokens a crash may cost")
    flag("--epoch", names.ENV_EPOCH, "", "number of this start; empty counts up")
    flag("--owner", names.ENV_OWNER, "", "whose context it is; empty takes up anybody's")
    flag(
        "--expect-manifest",
        names.ENV_EXPECT_MANIFEST,
        "",
        "manifest that the store must have, or a later one; empty expects nothing",
    )
    flag("--tier", names.ENV_TIER, names.SILVER, "gold, silver, bronze or one of your own")
    flag("--priority", names.ENV_PRIORITY, "", "priority of the tier; known for the shipped ones")
    flag("--weights-digest", names.ENV_WEIGHTS_DIGEST, "", "sha256:... that the weights must have")
    flag("--weights-cache", names.ENV_WEIGHTS_CACHE, "", "folder of the converted weights")
    flag("--kv-bytes", "SOJOURN_KV_BYTES", "0", "memory of the KV pool; 0 derives it")
    flag("--host-kv-bytes", "SOJOURN_HOST_KV_BYTES", HOST_KV, "host memory behind the pool, for KV")
    flag("--store-bytes", "SOJOURN_STORE_BYTES", str(1 << 30), "KV that the store may hold")
    flag("--threads", "SOJOURN_THREADS", "0", "threads of the kernels; 0 is one per processor")
    flag(
        "--shards", names.ENV_SHARDS, "1", "processes, a GPU each, that compute the model together"
    )
    flag("--termination-message", ENV_TERMINATION, names.TERMINATION_MESSAGE, "the last word")
    return parser


def parse_settings(arguments: Sequence[str], env: Mapping[str, str]) -> Settings:
    """The settings, or SettingsError."""
    given = _parser(env).parse_args(arguments)
    if not given.model:
        raise SettingsError(f"--model (or {names.ENV_MODEL}) is empty: name the weights")
    return Settings(
        model=given.model,
        model_name=given.model_name or _stem(given.model),
        model_numbers=_numbers(given.model_numbers),
        host=given.host,
        port=_number(given.port, "--port", names.ENV_PORT, low=0, high=65535),
        store=given.store or DEFAULT_STORE,
        session=session_name(given.session, f"--session (or {names.ENV_SESSION})"),
        device=given.device,
        quantization=given.quantization,
        context_length=_number(given.context_length, "--context-length", names.ENV_CONTEXT_LENGTH),
        checkpoint_tokens=_number(
            given.checkpoint_tokens, "--checkpoint-tokens", names.ENV_CHECKPOINT_TOKENS, low=1
        ),
        epoch=_number(given.epoch, "--epoch", names.ENV_EPOCH) if given.epoch else None,
        owner=given.owner,
        expect_manifest=_manifest(given.expect_manifest),
        priority=_priority(given.priority, given.tier),
        weights_digest=given.weights_digest,
        weights_cache=given.weights_cache,
        api_key=env.get(names.ENV_API_KEY, ""),
        granted_bytes=_granted(env),
        granted=_slots(env),
        kv_bytes=_number(given.kv_bytes, "--kv-bytes", "SOJOURN_KV_BYTES"),
        host_kv_bytes=_number(given.host_kv_bytes, "--host-kv-bytes", "SOJOURN_HOST_KV_BYTES"),
        store_bytes=_number(given.store_bytes, "--store-bytes", "SOJOURN_STORE_BYTES"),
        threads=_number(given.threads, "--threads", "SOJOURN_THREADS"),
        shards=_number(given.shards, "--shards", names.ENV_SHARDS, low=1),
        termination_message=given.termination_message,
    )


def _number(text: str, flag: str, variable: str, *, low: int = 0, high: int | None = None) -> int:
    try:
        value = int(text)
    except ValueError as error:
        raise SettingsError(f"{flag} (or {variable}) is {text!r}: write a whole number") from error
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise SettingsError(f"{flag} (or {variable}) is {value}: it must be {bounds}")
    return value


def _numbers(text: str) -> Numbers:
    try:
        raw = json.loads(text or "{}")
        return Numbers.read(Reader({"numbers": raw}).part("numbers"))
    except ValueError as error:
        raise SettingsError(
            f"--model-numbers (or {names.ENV_MODEL_NUMBERS}) is no JSON of an LLMModel's numbers: "
            f"{error}"
        ) from error


def session_name(name: str, flag: str = "--session") -> str:
    """The name itself; SettingsError for what is no DNS label, as a path is not."""
    if _LABEL.fullmatch(name) is None:
        raise SettingsError(
            f"{flag} is {name!r}: write 1 to 63 lower-case letters, digits and '-', with a letter "
            "or digit at both ends"
        )
    return name


def _manifest(name: str) -> str:
    if name and not layout.is_manifest(name):
        raise SettingsError(
            f"--expect-manifest (or {names.ENV_EXPECT_MANIFEST}) is {name!r}: write the name of a "
            "manifest, such as manifest-3-12.json"
        )
    return name


def _priority(text: str, tier: str) -> int:
    if text:
        try:
            return int(text)
        except ValueError as error:
            message = f"--priority (or {names.ENV_PRIORITY}) is {text!r}: write a whole number"
            raise SettingsError(message) from error
    shipped = {known.meta.name: known.priority for known in SHIPPED_TIERS}
    if tier not in shipped:
        raise SettingsError(
            f"--tier (or {names.ENV_TIER}) is {tier!r}, not one of {', '.join(shipped)}: say its "
            f"priority with --priority (or {names.ENV_PRIORITY})"
        )
    return shipped[tier]


def _granted(env: Mapping[str, str]) -> int:
    """Memory of all GPUs that Allocate granted; 0 without a grant."""
    total = 0
    for variable, text in env.items():
        if variable.startswith("SOJOURN_GPU_") and variable.endswith("_BYTES"):
            total += _number(text, variable, variable)
    return total


def _slots(env: Mapping[str, str]) -> tuple[int, ...]:
    found = (_SLOT.fullmatch(variable) for variable in env)
    return tuple(sorted(int(match[1]) for match in found if match))


def _stem(uri: str) -> str:
    """A model's name from its file's."""
    name = urlsplit(uri).path.rstrip("/").rpartition("/")[2]
    return name.removesuffix(".gguf").removesuffix(".safetensors") or "model"
