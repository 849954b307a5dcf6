"""The cheapest ways to make room for a claimant: the numbers first, then a simulation of the best.

One GPU is found by `cheapest`; several GPUs, and nodes short of CPU or memory, node by node.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from sojourn_operator.plan import tenants
from sojourn_operator.plan.cheapest import Search, offers
from sojourn_operator.plan.index import tie_of
from sojourn_operator.plan.need import Need
from sojourn_operator.plan.rank import Verdict, may_pause, priority_of
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.roster import Held, Spot
from sojourn_operator.plan.state import Phase, Session
from sojourn_operator.plan.take import WHOLE
from sojourn_operator.plan.turn import Kind, Turn
from sojourn_operator.plan.victims import Candidate, Claim, candidate, find_claims

CLOSE_CALLS: Final = 4
"""Claims that are looked at for homes of their victims: a guess; each home costs a decision."""
SHORTLIST: Final = 64
"""Nodes that are simulated for a claimant of several GPUs: a guess, as kube-scheduler has one."""


class RoomFinder:
    """One claimant's search in one plan."""

    def __init__(self, turn: Turn, session: Session) -> None:
        self._turn = turn
        self._session = session
        self._accept = turn.accepts(session)
        self._known: dict[str, Candidate | None] = {}
        self._strict = True
        self._skipped = False
        self._cooling = is_cooling(turn, session)

    def find(self) -> list[Claim]:
        """Ways to make room over the fewest GPUs that give any; cheapest first."""
        request = self._session.request
        for shards in range(request.shards, max(request.max_shards, request.shards) + 1):
            claims = self._one(shards) if shards == 1 else self._many(shards)
            if claims:
                return claims
        return []

    def _one(self, shards: int) -> list[Claim]:
        turn, need = self._turn, self._needs(shards)
        for strict in (True, False):
            self._strict = strict
            claims = self._among(turn.leaving_nodes(), shards, pause=False)
            if claims or self._cooling:
                return claims
            search = Search(
                roster=turn.board.roster,
                rooms=turn.board.placer.rooms,
                need=need,
                going=turn.leaving_from,
                who=self._who,
                save=turn.board.save,
                over=self._over,
                tiers={name: tier.priority for name, tier in turn.state.tiers.items()},
                strict=strict and bool(turn.budgets),
            )
            for found in offers(search, self._tiers()):
                nodes = list(dict.fromkeys(spot[0] for _, spot in found.best))
                for at in range(0, len(nodes), CLOSE_CALLS):
                    some = nodes[at : at + CLOSE_CALLS]
                    claims = self._among(some, shards, options=found.count)
                    if claims:
                        return claims
            if not self._skipped:
                break
            self._known.clear()
        return self._among(self._short(need), shards)

    def _tiers(self) -> list[str]:
        """Tiers that the claimant may pause, lowest first."""
        state = self._turn.state
        above = state.tiers.get(self._session.tier)
        if above is None:
            return []
        below = [
            tier
            for tier in state.tiers.values()
            if tier.priority < above.priority and above.name in tier.pausable_by
        ]
        return [tier.name for tier in sorted(below, key=lambda one: (one.priority, one.name))]

    def _many(self, shards: int) -> list[Claim]:
        """Nodes with least to free first; nodes short of CPU are among them."""
        maps = [self._turn.board.roster.of[tier] for tier in self._tiers()]
        need_on, ranked = self._needs(shards), []
        names = {spot[0] for held in maps for spot in held} | set(self._turn.leaving_nodes())
        for name in names:
            room = self._turn.board.placer.rooms[name]
            need = need_on(room)
            if need is not None:
                wanted = self._to_free(room, need, maps)
                if wanted is not None:
                    ranked.append((wanted, tie_of(name), name))
        ranked.sort()
        self._strict = False
        return self._among([name for _, _, name in ranked[:SHORTLIST]], shards)

    def _to_free(self, room: Room, need: Need, maps: Sequence[Mapping[Spot, Held]]) -> int | None:
        """Slices to free on the emptiest GPUs, None if all of lower tiers would not be enough."""
        name, slices = room.node.name, need.gpu.slices
        going = [0] * len(room.slices)
        for what in self._turn.leaving_from(name):
            for index, freed, _ in what.gpus:
                going[index] += freed
        lacking = []
        for index, parts in enumerate(need.gpu.parts):
            lack = slices - room.slices[index] - going[index]
            held = sum(one.slices for spots in maps if (one := spots.get((name, index))))
            if 0 <= parts <= WHOLE and lack <= held:
                lacking.append(max(lack, 0))
        lacking.sort()
        return sum(lacking[: need.gpu.shards]) if len(lacking) >= need.gpu.shards else None

    def _short(self, need_on: Callable[[Room], Need | None]) -> list[str]:
        """Nodes where CPU, memory or pods stand in the way, so that any session may matter."""
        board = self._turn.board
        maps = [board.roster.of[tier] for tier in self._tiers()]
        return [
            name
            for name in board.lacks.of(self._session.request).short
            if (need := need_on(room := board.placer.rooms[name])) is not None
            and self._to_free(room, need, maps) is not None
        ]

    def _among(
        self, names: Iterable[str], shards: int, *, pause: bool = True, options: int = 0
    ) -> list[Claim]:
        rooms, need_on = self._turn.board.placer.rooms, self._needs(shards)
        needs = [
            (room, need) for name in names if (need := need_on(room := rooms[name])) is not None
        ]
        if self._cooling or not pause:
            return self._simulate(needs, lambda _: [], options)
        return self._simulate(needs, self.on_node, options)

    def _simulate(
        self,
        needs: list[tuple[Room, Need]],
        candidates: Callable[[str], list[Candidate]],
        options: int,
    ) -> list[Claim]:
        return find_claims(
            self._turn.board.placer,
            needs,
            leaving=self._turn.leaving_from,
            candidates=candidates,
            count=CLOSE_CALLS,
            options=options,
        )

    def _needs(self, shards: int) -> Callable[[Room], Need | None]:
        """The need on a node, None on those that the claimant may not go to."""
        need = self._turn.board.placer.index.needs(self._session.request, shards)
        accept = self._accept

        def allowed(room: Room) -> Need | None:
            if not room.usable or (accept is not None and not accept(room.node.name)):
                return None
            return need(room)

        return allowed

    def on_node(self, node: str) -> list[Candidate]:
        """Sessions on a node that the claimant may send away."""
        keys = self._turn.board.holders.get(node, {})
        return [one for key in keys if (one := self._who(key)) is not None]

    def _over(self, tier: str) -> float:
        """How far the tenant of any session of a tier is above its guarantee, at most."""
        board = self._turn.board
        top = tenants.most_over(self._turn.state, board.books, tier)
        return max(top, board.roster.largest_share(tier), 1)

    def _who(self, key: str) -> Candidate | None:
        """A session as a candidate, None if it may not be sent away."""
        if key not in self._known:
            self._known[key] = self._candidate(key)
        return self._known[key]

    def _candidate(self, key: str) -> Candidate | None:
        turn = self._turn
        if key in turn.leaving:
            return None
        victim, state, books = turn.state.sessions[key], turn.state, turn.board.books
        verdict = may_claim(turn, self._session, victim)
        if verdict.after is not None:
            turn.look_again(verdict.after)
        if not verdict.pausable:
            return None
        over = tenants.over(state, books, victim)
        found = candidate(
            victim,
            turn.board.held[key],
            priority=priority_of(state, victim),
            over=over,
            borrows=over >= max(victim.request.share, 1),
            budgets=turn.budgets,
        )
        if self._strict:
            self._skipped = self._skipped or bool(found.budgets) or not found.borrows
            if found.violates or not found.borrows:
                return None
        return found


def is_cooling(turn: Turn, session: Session) -> bool:
    """Whether it was paused so lately that it may not pause others to come back."""
    tier = turn.state.tiers.get(session.tier)
    if tier is None or session.phase is not Phase.PAUSED:
        return False
    until = session.since + tier.cool_down
    turn.look_again(until)
    return turn.state.now < until


def kind_of(turn: Turn, session: Session) -> Kind:
    """What it has in common with others that find room, or none, wherever it does."""
    return session.request, session.tier, session.tenant, is_cooling(turn, session)


def may_claim(turn: Turn, claimant: Session, victim: Session) -> Verdict:
    """Tiers decide, and a tenant above its guarantee takes nothing guaranteed to another."""
    verdict = may_pause(turn.state, claimant, victim)
    state, books = turn.state, turn.board.books
    if (
        verdict.pausable
        and claimant.tenant in state.tenants
        and victim.tenant in state.tenants
        and not tenants.within_guarantee(state, books, claimant)
        and not tenants.borrows(state, books, victim)
    ):
        return Verdict(pausable=False)
    return verdict
