"""Settings: what is accepted, and how what is wrong is named."""

from pathlib import Path

import pytest
from sojourn_deviceplugin.config import (
    Config,
    ConfigError,
    DeviceList,
    MpsThreads,
    Policy,
    load,
    parse,
)

GIB = 1024**3


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("")
    assert load(file) == Config()


def test_all_kinds_of_settings_are_read() -> None:
    config = parse(
        {
            "sliceBytes": "2Gi",
            "sliceBytesByModel": {"H200": "4Gi", "A100-80GB": 536870912},
            "reservedBytes": 0,
            "kubeletDir": "/k",
            "deviceListStrategy": "cdi",
            "deviceNodes": "none",
            "processNames": True,
            "hostCgroup": "/sys/fs/cgroup",
            "mpsPipeDir": "/run/mps",
            "mpsThreads": "all",
            "offenders": "stop",
        }
    )
    assert config.slice_bytes == 2 * GIB
    assert config.slice_bytes_of("NVIDIA A100-SXM4-80GB") == GIB // 2
    assert config.slice_bytes_of("NVIDIA H200") == 4 * GIB
    assert config.slice_bytes_of("something else") == 2 * GIB
    assert config.plugin_dir == Path("/k/device-plugins")
    assert config.device_list_strategy is DeviceList.CDI
    assert (config.host_cgroup, config.mps_pipe_dir) == (Path("/sys/fs/cgroup"), Path("/run/mps"))
    assert (config.mps_threads, config.offenders) == (MpsThreads.ALL, Policy.STOP)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"sliceByte": "1Gi"}, "sliceByte: no such setting; there are .*sliceBytes"),
        ({"sliceBytes": "100Mi"}, "sliceBytes: .*below 256Mi"),
        ({"sliceBytes": "1GB"}, "sliceBytes: '1GB' is no size"),
        ({"sliceBytes": True}, "sliceBytes: True is no size"),
        ({"sliceBytesByModel": {"H200": "1Mi"}}, "sliceBytesByModel.H200: .*below"),
        ({"sliceBytesByModel": "1Gi"}, "sliceBytesByModel: .*no mapping"),
        ({"kubeletDir": "var"}, "kubeletDir: 'var' is no absolute path"),
        ({"deviceNodes": "yes"}, "deviceNodes: 'yes' is none of auto, none"),
        ({"offenders": "kill"}, "offenders: 'kill' is none of report, stop"),
        ({"mpsShmDir": "shm"}, "mpsShmDir: 'shm' is no absolute path"),
        ({"probeSeconds": 0}, "probeSeconds: 0 is no whole number from 1 to 60"),
        ({"probeSeconds": "2"}, "probeSeconds: '2' is no whole number"),
        ({"publish": "no"}, "publish: 'no' is neither"),
        ({"cdiKind": "nvidia gpu"}, "cdiKind: 'nvidia gpu' is no CDI kind"),
        ({"cdiKind": None}, "cdiKind: None is no CDI kind"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_may_be(raw: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(raw)


@pytest.mark.parametrize("content", [b"- a\n", b"a: [\n", b"# \xff\n", b"2026-13-45: 1\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        load(file)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        load(tmp_path / "absent.yaml")


def test_settings_that_are_no_words_are_named_among_others(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("1: 2\nfoo: 3\n")
    with pytest.raises(ConfigError, match="1: no such setting"):
        load(file)


@pytest.mark.parametrize("key", ["hostProc", "hostCgroup"])
def test_a_folder_of_the_host_that_is_not_mounted_is_named(key: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{key}: {tmp_path}/host\n")
    with pytest.raises(ConfigError, match=f"{key}: {tmp_path}/host is no folder"):
        load(path)
    (tmp_path / "host").mkdir()
    load(path)
