"""What a container is given with MIG instances."""

from dataclasses import replace

import pytest
from sojourn_api import names
from sojourn_deviceplugin import mig
from sojourn_deviceplugin.config import Config, DeviceList, DeviceNodes

POOL = mig.Pool("1g.10gb", tuple(mig.Instance(f"MIG-{n}", None, n != 3) for n in range(4)))
ENV = names.env_mig_uuids("1g.10gb")


def test_by_default_nvidias_runtime_is_asked_for_them() -> None:
    found = mig.answer(POOL, ["MIG-2", "MIG-0"], Config())
    assert dict(found.envs) == {ENV: "MIG-0,MIG-2", "NVIDIA_VISIBLE_DEVICES": "MIG-0,MIG-2"}


@pytest.mark.parametrize(
    ("config", "names_of_cdi"),
    [
        (replace(Config(), device_list_strategy=DeviceList.CDI), ["nvidia.com/gpu=MIG-0"]),
        (replace(Config(), device_nodes=DeviceNodes.NONE), []),
    ],
)
def test_with_cdi_and_in_a_simulation_it_is_not(config: Config, names_of_cdi: list[str]) -> None:
    found = mig.answer(POOL, ["MIG-0"], config)
    assert dict(found.envs) == {ENV: "MIG-0"}
    assert [device.name for device in found.cdi_devices] == names_of_cdi


@pytest.mark.parametrize("lost", ["MIG-3", "MIG-9"])
def test_an_instance_that_is_sick_or_gone_is_refused_by_name(lost: str) -> None:
    with pytest.raises(LookupError, match=lost):
        mig.answer(POOL, ["MIG-0", lost], Config())
