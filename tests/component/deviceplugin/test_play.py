"""Random play of a node's life; the ledger must be the kubelet's view at all times."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)
from sojourn_api import arbiter, names
from sojourn_deviceplugin.config import Config, DeviceNodes
from sojourn_deviceplugin.core import AllocationError, Node
from sojourn_deviceplugin.facts import GpuFacts, NodeFacts, Xid
from sojourn_deviceplugin.ledger import Holder
from sojourn_deviceplugin.room import free_slices

GIB = 1024**3
GPUS = 2
ordinals = st.integers(0, GPUS - 1)


class Life(RuleBasedStateMachine):
    """A model of the kubelet's device manager drives the node's core; NVML and time are values."""

    pods = Bundle("pods")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="play", dir="/dev/shm"))
        self.config = Config(
            slice_bytes=4 * GIB,
            arbiter_dir=self.folder / "run",
            state_dir=self.folder / "state",
            device_nodes=DeviceNodes.NONE,
            recovery_probes=2,
        )
        self.now = 1_000_000_000_000
        self.session = 1
        self.facts = [
            GpuFacts(uuid=f"GPU-{n}{n}{n}{n}{n}{n}{n}{n}", model="A100", total_bytes=80 * GIB)
            for n in range(GPUS)
        ]
        self.held: dict[tuple[Holder, int], frozenset[str]] = {}
        self.born = 0
        self.listed = True

    def clock(self) -> int:
        self.now += 1_000_000
        return self.now

    @initialize()
    def start(self) -> None:
        self.node = Node(self.config, boot="boot", clock=self.clock)
        self.look()
        self.list()

    def look(self, *xids: Xid) -> None:
        self.node.refresh(NodeFacts(gpus=tuple(self.facts), session=self.session), xids)

    def healthy(self, ordinal: int) -> list[str]:
        _, message = self.node.message(names.gpu_resource(ordinal), after=0, unless=lambda: True)
        return [device.ID for device in message.devices if device.health == "Healthy"]

    def taken(self, ordinal: int) -> frozenset[str]:
        return frozenset().union(*(d for (_, o), d in self.held.items() if o == ordinal))

    # ------------------------------------------------------------ what may happen

    @rule(target=pods, ordinal=ordinals, count=st.integers(1, 20), start=st.integers(0, 19))
    def allocate(self, ordinal: int, count: int, start: int) -> Holder | None:
        free = [d for d in self.healthy(ordinal) if d not in self.taken(ordinal)]
        if len(free) < count:
            return None
        free = free[start % len(free) :] + free[: start % len(free)]
        chosen = free[:count]
        response = self.node.allocate(names.gpu_resource(ordinal), chosen)
        self.born += 1
        holder = Holder("ns", f"p{self.born}", "runtime")
        self.held[holder, ordinal] = frozenset(chosen)
        assert Path(response.mounts[1].host_path).is_dir()
        assert response.envs[names.env_gpu_slices(ordinal)] == str(count)
        self.listed = False
        return holder

    @rule(holder=consumes(pods))
    def finish(self, holder: Holder | None) -> None:
        self.held = {key: value for key, value in self.held.items() if key[0] != holder}
        self.listed = False

    @rule()
    def list(self) -> None:
        self.now += 11_000_000_000
        self.node.reconcile(self.held, listed_ns=self.clock())
        self.listed = True

    @rule()
    def restart_plugin(self) -> None:
        self.node.close()
        self.node = Node(self.config, boot="boot", clock=self.clock)
        self.look()
        self.listed = False

    @rule()
    def lose_run(self) -> None:
        """The arbiter's folders are gone, as after a reboot, but pods are not."""
        shutil.rmtree(self.config.arbiter_dir)
        self.restart_plugin()

    @rule(ordinal=ordinals, xid=st.sampled_from([13, 48, 79, 9999]))
    def fail(self, ordinal: int, xid: int) -> None:
        self.look(Xid(uuid=self.facts[ordinal].uuid, number=xid))

    @rule()
    def restart_driver(self) -> None:
        self.session += 1
        self.look()

    @rule(ordinal=ordinals, gib=st.integers(0, 100))
    def foreign(self, ordinal: int, gib: int) -> None:
        old = self.facts[ordinal]
        self.facts[ordinal] = GpuFacts(
            uuid=old.uuid, model="A100", total_bytes=80 * GIB, used_bytes=gib * GIB
        )
        self.look()

    @rule()
    def probe(self) -> None:
        self.look()

    @rule(ordinal=ordinals)
    def ask_for_nonsense(self, ordinal: int) -> None:
        before = self.node.snapshot()[2]
        try:
            self.node.allocate(names.gpu_resource(ordinal), ["nonsense-1"])
        except AllocationError:
            assert self.node.snapshot()[2] == before
        else:
            raise AssertionError("nonsense was granted")

    # ------------------------------------------------------------ what must hold

    @invariant()
    def everything_held_is_in_the_ledger(self) -> None:
        if not hasattr(self, "node"):
            return
        ledger = {(g.ordinal, g.devices) for g in self.node.snapshot()[2]}
        known = {(o, d) for (_, o), d in self.held.items()}
        if self.listed:
            assert ledger == known

    @precondition(lambda self: self.listed)
    @invariant()
    def holders_and_pages_are_right(self) -> None:
        if not hasattr(self, "node"):
            return
        grants = self.node.snapshot()[2]
        assert {((g.holder, g.ordinal), g.devices) for g in grants} == set(self.held.items())
        slots = [(g.ordinal, g.slot) for g in grants if g.slot]
        assert len(slots) == len(set(slots))
        for grant in grants:
            if grant.slot:
                folder = self.config.arbiter_dir / self.facts[grant.ordinal].uuid / "grants"
                assert arbiter.read_tier(folder, grant.slot) == grant.tier

    @invariant()
    def no_slice_is_given_twice(self) -> None:
        if not hasattr(self, "node"):
            return
        for ordinal in range(GPUS):
            grants = [g for g in self.node.snapshot()[2] if g.ordinal == ordinal]
            assert sum(g.slices for g in grants) == len(self.node._ledger.held(ordinal))

    @invariant()
    def held_slices_are_never_withdrawn_and_free_ones_add_up(self) -> None:
        if not hasattr(self, "node") or not self.listed:
            return
        _, offers, grants = self.node.snapshot()
        for offer in offers:
            held = self.taken(offer.gpu.ordinal)
            assert not held & offer.out
            if offer.verdict.healthy:
                free = set(self.healthy(offer.gpu.ordinal)) - held
                assert free_slices(offer, grants) == len(free)

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.node.close()
        shutil.rmtree(self.folder)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
