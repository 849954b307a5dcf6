"""Random play of a node's life; the ledger must be the kubelet's view at all times."""

import shutil
import tempfile
from collections.abc import Iterable
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
            mps_pipe_dir=self.folder / "mps",
        )
        self.now = 1_000_000_000_000
        self.session = 1
        self.facts = [
            GpuFacts(uuid=f"GPU-{n}{n}{n}{n}{n}{n}{n}{n}", model="A100", total_bytes=80 * GIB)
            for n in range(GPUS)
        ]
        self.held: dict[tuple[Holder, int], frozenset[str]] = {}
        self.ended: set[tuple[int, frozenset[str]]] = set()
        """Over, by the kubelet, which has not been asked since."""
        self.forgot = False
        """The plugin's own memory is gone, and the kubelet has not been asked since."""
        self.awaited: set[tuple[int, frozenset[str]]] = set()
        """Granted before the kubelet's last start, and not listed by it since."""
        self.clients: set[Holder] = set()
        """Told to be clients of MPS."""
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
        _, message = self.node.lists.wait(names.gpu_resource(ordinal), after=0, unless=lambda: True)
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
        self.ended = {(o, d) for o, d in self.ended if o != ordinal or not d & frozenset(chosen)}
        if "CUDA_MPS_PIPE_DIRECTORY" in response.envs:
            self.clients.add(holder)
        assert Path(response.mounts[1].host_path).is_dir()
        assert response.envs[names.env_gpu_slices(ordinal)] == str(count)
        self.listed = False
        return holder

    @rule(holder=consumes(pods))
    def finish(self, holder: Holder | None) -> None:
        self._end(key for key in self.held if key[0] == holder)

    def _end(self, keys: Iterable[tuple[Holder, int]]) -> None:
        for key in tuple(keys):
            self.ended.add((key[1], self.held.pop(key)))
        self.listed = False

    @rule()
    def lose_checkpoint(self) -> None:
        """The kubelet starts again and knows of no device in use; their pods are ended."""
        self._end(self.held)

    @rule(answers=st.booleans())
    def ask_mps(self, *, answers: bool) -> None:
        self.node.mps = answers

    @rule(patient=st.booleans())
    def list(self, *, patient: bool = False) -> None:
        """Patient with a kubelet that has just started, which may not list all yet."""
        self.now += 11_000_000_000
        self.node.reconcile(self.held, listed_ns=self.clock(), patient=patient)
        self.awaited = self.awaited - self.known() if patient else set()
        self.ended, self.forgot = self.ended & self.awaited, False
        self.listed = not self.ended

    @rule()
    def restart_kubelet(self) -> None:
        """With its checkpoint: it knows what pods have, and what is over is free."""
        self.node.kubelet_restarted()
        self.awaited = {(g.ordinal, g.devices) for g in self.node.snapshot()[2]}

    def known(self) -> set[tuple[int, frozenset[str]]]:
        return {(ordinal, devices) for (_, ordinal), devices in self.held.items()}

    @rule()
    def restart_plugin(self) -> None:
        # What was adopted has no page, and so no line in the journal.
        self.forgot |= any(not grant.slot for grant in self.node.snapshot()[2])
        self.node.close()
        self.node = Node(self.config, boot="boot", clock=self.clock)
        self.look()
        self.listed, self.awaited = False, set()

    @rule()
    def lose_run(self) -> None:
        """The arbiter's folders are gone, as after a reboot, but pods are not."""
        shutil.rmtree(self.config.arbiter_dir)
        self.restart_plugin()
        self.ended, self.forgot, self.clients = set(), True, set()

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

    @rule(ordinal=ordinals)
    def ask_for_what_is_sick(self, ordinal: int) -> None:
        if self.node.offer(ordinal).verdict.healthy:
            return
        before = self.node.snapshot()[2]
        try:
            self.node.allocate(names.gpu_resource(ordinal), [self.node.offer(ordinal).gpu.ids[0]])
        except AllocationError:
            assert self.node.snapshot()[2] == before
        else:
            raise AssertionError("a slice of a sick GPU was granted")

    # ------------------------------------------------------------ what must hold

    @invariant()
    def the_ledger_is_the_kubelets_view(self) -> None:
        """At all times: what it holds, and what it has ended since it was last asked."""
        if not hasattr(self, "node"):
            return
        ledger = {(g.ordinal, g.devices) for g in self.node.snapshot()[2]}
        known = self.known()
        assert not self.listed or ledger == known
        if self.forgot:
            assert ledger <= known | self.ended
        else:
            assert ledger == known | self.ended

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
                assert grant.mps == (grant.holder in self.clients)

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
