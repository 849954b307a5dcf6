"""What the plugin does when the node around it is not as it should be: disk, folders, ports."""

import logging
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sojourn_api import names
from sojourn_deviceplugin import check, cli, registry
from sojourn_deviceplugin.alone import NotAloneError, alone
from sojourn_deviceplugin.config import Config, DeviceNodes
from sojourn_deviceplugin.core import Node
from sojourn_deviceplugin.facts import GpuFacts, NodeFacts, Xid
from sojourn_deviceplugin.metrics import Metrics
from sojourn_deviceplugin.news import News
from sojourn_deviceplugin.server import Endpoint, SocketError

GIB = 1024**3
GPU = GpuFacts(uuid="GPU-00000001", model="A100", total_bytes=80 * GIB)
RESOURCE = names.gpu_resource(0)
XID = Xid(uuid=GPU.uuid, number=48)


def seen(gpu: GpuFacts) -> NodeFacts:
    return NodeFacts(gpus=(gpu,), session=1)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        kubelet_dir=tmp_path / "kubelet",
        arbiter_dir=tmp_path / "run",
        state_dir=tmp_path / "state",
        device_nodes=DeviceNodes.NONE,
        publish=False,
        metrics_port=0,
    )


def spoil(folder: Path) -> Path:
    """Put a file in the folder's place; returns where the folder is now."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.touch()
    return aside


def test_a_gpu_stays_condemned_while_the_disk_cannot_be_written_and_is_written_down_later(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(config, boot="b")
    node.refresh(seen(GPU))
    aside = spoil(config.state_dir)
    with caplog.at_level(logging.ERROR):
        node.refresh(seen(GPU), [XID])
        node.refresh(seen(GPU))
    assert node.offer(0).verdict.reason == "Xid48"
    assert [record.message for record in caplog.records] == ["not saved, a restart would forget it"]
    config.state_dir.unlink()
    aside.rename(config.state_dir)
    node.refresh(seen(GPU))
    node.close()
    fault = registry.Registry(config.state_dir).load()[GPU.uuid].health.fault
    assert fault is not None
    assert fault.xid == XID.number


def test_a_new_gpu_is_not_offered_before_its_ordinal_is_written_down(config: Config) -> None:
    node = Node(config, boot="b")
    node.refresh(seen(GPU))
    spoil(config.state_dir)
    other = replace(GPU, uuid="GPU-00000002")
    with pytest.raises(registry.RegistryError, match=r"gpus\.json: cannot be written"):
        node.refresh(NodeFacts(gpus=(GPU, other), session=1))
    node.close()


def test_no_free_slice_of_a_gpu_in_mig_mode_is_in_service_though_a_pod_holds_some(
    config: Config,
) -> None:
    node = Node(config, boot="b")
    node.refresh(seen(GPU))
    held = frozenset(node.offer(0).gpu.ids[:5])
    node.allocate(RESOURCE, sorted(held))
    node.refresh(seen(replace(GPU, mig=True)))
    healthy = {d.ID for d in node.offer(0).message().devices if d.health == "Healthy"}
    assert healthy == held
    node.refresh(seen(GPU))
    assert node.offer(0).in_service == 79
    node.close()


def test_a_kubelet_folder_that_is_absent_is_named_alike_each_time(config: Config) -> None:
    """Else a log that tells each error once tells it five times a second."""
    node = Node(config, boot="b")
    node.refresh(seen(GPU))
    texts = set()
    for _ in range(2):
        with pytest.raises(SocketError, match="no such folder; is kubeletDir right") as caught:
            Endpoint(node, RESOURCE, config.plugin_dir, Metrics())
        texts.add(str(caught.value))
    assert len(texts) == 1
    node.close()


def test_a_socket_path_that_is_too_long_is_named_alike_each_time(
    config: Config, tmp_path: Path
) -> None:
    node = Node(config, boot="b")
    node.refresh(seen(GPU))
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    texts = set()
    for _ in range(2):
        with pytest.raises(SocketError, match="below 107 characters") as caught:
            Endpoint(node, RESOURCE, folder, Metrics())
        texts.add(str(caught.value))
    assert len(texts) == 1
    node.close()


@pytest.fixture
def _own_logging() -> Iterator[None]:
    """The command sets up logging for its process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("_own_logging")
def test_a_port_in_use_is_named(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        file = tmp_path / "c.yaml"
        file.write_text(
            f"stateDir: {config.state_dir}\narbiterDir: {config.arbiter_dir}\n"
            f"kubeletDir: {config.kubelet_dir}\npublish: false\nmetricsPort: {port}\n"
        )
        assert cli.main(["run", "--config", str(file)]) == 2
    assert f"metricsPort: {port} cannot be listened on" in capsys.readouterr().err


def test_a_check_says_why_no_slice_is_offered(config: Config) -> None:
    large = replace(config, slice_bytes=500 * GIB)
    (line,) = check.report(seen(GPU), {}, large, boot="b")
    assert "0 x " in line
    assert "not one slice fits beside the reserve: lower sliceBytes or reservedBytes" in line


def test_a_second_plugin_on_the_same_state_is_refused_until_the_first_has_ended(
    tmp_path: Path,
) -> None:
    with (
        alone(tmp_path),
        pytest.raises(NotAloneError, match=r"another .* holds it"),
        alone(tmp_path, patience=0),
    ):
        pass
    with alone(tmp_path, patience=0):
        pass


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotAloneError, match="is stateDir writable"), alone(tmp_path / "file" / "x"):
        pass


def test_a_node_without_gpus_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    news = News(lambda **_: None, Metrics())
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            news.nvml(NodeFacts(session=1))
        news.nvml(seen(GPU))
    assert [record.message for record in caplog.records] == [
        "NVML lists no GPU, so none is offered"
    ]
