"""Defragmentation: moves that let a waiting session in, or empty a GPU, within a budget.

Off unless the state says otherwise; never for tiers that are never paused; each move has its home
reserved first. A dry run only notes what it would do.
"""

from dataclasses import replace

from sojourn_operator.plan.actions import DEFRAGMENTED, MAKING_ROOM, Move, Nominate, Wait
from sojourn_operator.plan.makeroom import UP, expiry
from sojourn_operator.plan.rank import never_paused
from sojourn_operator.plan.rehome import Holding, LetIn, let_in
from sojourn_operator.plan.state import DefragMode, Nomination, Place, Request, Session
from sojourn_operator.plan.turn import Turn
from sojourn_operator.plan.words import asked, at, counted


def defragment(turn: Turn, waiting: list[Session]) -> None:
    """Spend the moves that the state allows: first for those who wait, then to empty a GPU."""
    rule = turn.state.defrag
    if rule.mode is DefragMode.OFF:
        return
    left = rule.moves
    tried: set[Request] = set()
    for session in waiting:
        if left <= 0:
            return
        if session.request in tried or session.nomination is not None:
            continue
        tried.add(session.request)
        moves = _let_in(turn, session, left)
        left -= moves
        if not moves and turn.kept is not None and turn.kept[0] is session:
            turn.board.book(*turn.kept)  # nothing better was found than to keep it
    if left > 0 and not waiting:
        _empty_one(turn, left)


def movable(turn: Turn, node: str) -> list[Holding]:
    """Sessions on a node that may be moved for the sake of packing."""
    state, found = turn.state, []
    for key, what in sorted(turn.board.holders.get(node, {}).items()):
        session = state.sessions[key]
        tier = state.tiers.get(session.tier)
        if tier is None or never_paused(tier) or key in turn.leaving or session.phase not in UP:
            continue
        until = session.since + max(tier.min_run, tier.cool_down)
        if state.now < until:
            turn.look_again(until)
        else:
            found.append(Holding(key, what, session.request))
    return found


def _let_in(turn: Turn, session: Session, limit: int) -> int:
    """Moves for one waiting session; how many."""
    request = session.request
    turn.board.unbook(session.key)  # what is kept for it may be a part of what it gets
    found = let_in(
        turn.board.placer,
        request,
        shards=request.shards,
        movable=lambda node: movable(turn, node),
        limit=limit,
    )
    if found is None or found.place.node in session.avoid:
        return 0
    victims = [turn.state.sessions[holding.key] for holding, _ in found.moves]
    why = f"{session.key} needs {asked(request)}"
    if turn.state.defrag.mode is DefragMode.DRY_RUN:
        for holding, home in found.moves:
            turn.notes.append(f"would move {holding.key} to {at(home)}, as {why}")
        return len(found.moves)
    nomination = Nomination(
        found.place, tuple(victim.key for victim in victims), expiry(turn, victims)
    )
    turn.actions = [
        one for one in turn.actions if not (isinstance(one, Wait) and one.session == session.key)
    ]
    turn.actions.append(
        Nominate(
            session.key,
            nomination,
            reason=MAKING_ROOM,
            message=f"needs {asked(request)}; {counted(len(victims), 'session')} to move elsewhere",
        )
    )
    turn.look_again(nomination.expires)
    turn.board.book(session, found.place)
    _move_all(turn, found, why)
    return len(found.moves)


def _move_all(turn: Turn, found: LetIn, why: str) -> None:
    for holding, home in found.moves:
        session = turn.state.sessions[holding.key]
        turn.board.book(session, home)
        turn.actions.append(
            Move(
                session.key,
                nomination=Nomination(home, (), expiry(turn, [session])),
                reason=DEFRAGMENTED,
                message=f"moves to {at(home)}, as {why}",
            )
        )
        turn.leave(session)


def _empty_one(turn: Turn, limit: int) -> None:
    """Empty the least used GPU onto others that are in use: one GPU fewer in use each time."""
    placer = turn.board.placer
    options = []
    for name, room in placer.rooms.items():
        if not room.usable:
            continue
        holdings = movable(turn, name)
        for index, left in enumerate(room.left):
            mine = [one for one in holdings if any(index == i for i, _, _ in one.what.gpus)]
            held = sum(
                any(index == i for i, _, _ in what.gpus)
                for what in turn.board.holders.get(name, {}).values()
            )
            alone = all(len(one.what.gpus) == 1 for one in mine)
            if mine and alone and len(mine) == held <= limit and left < 1000:
                options.append((-left, len(mine), name, index, mine))
    for _, _, name, index, mine in sorted(options, key=lambda one: one[:4])[:4]:
        homes = _used_homes(turn, name, index, mine)
        if homes is None:
            continue
        why = f"{name} gpu-{placer.rooms[name].node.gpus[index].ordinal} becomes free"
        if turn.state.defrag.mode is DefragMode.DRY_RUN:
            turn.notes += [
                f"would move {one.key} to {at(home)}, so that {why}" for one, home in homes
            ]
        else:
            _move_all(turn, LetIn(homes[0][1], tuple(homes)), f"so {why}")
        return


def _used_homes(
    turn: Turn, node: str, index: int, holdings: list[Holding]
) -> list[tuple[Holding, Place]] | None:
    """A home on a GPU in use for each, None if one has none; books nothing."""
    homes: list[tuple[Holding, Place]] = []
    for one in holdings:
        session = turn.state.sessions[one.key]
        home = _used_home(turn, one.request, node, index)
        if home is None:
            break
        homes.append((one, home))
        turn.board.book(session, home)
    for one, _ in homes:
        turn.board.unbook(one.key)
    return homes if len(homes) == len(holdings) else None


def _used_home(turn: Turn, request: Request, node: str, index: int) -> Place | None:
    """The best place on GPUs that others use already."""
    placer = turn.board.placer
    need_on = placer.index.needs(request, request.shards)
    best: tuple[int, str, Place] | None = None
    for name, room in placer.rooms.items():
        need = need_on(room) if room.usable else None
        if need is None:
            continue
        used = tuple(
            parts if room.left[i] < 1000 and (name, i) != (node, index) else -1
            for i, parts in enumerate(need.gpu.parts)
        )
        narrowed = replace(need, gpu=replace(need.gpu, parts=used))
        score, home = placer.policy.score(room, narrowed), placer.place_on(room, narrowed)
        if score is not None and home is not None and (best is None or (score, name) > best[:2]):
            best = (score, name, home)
    return None if best is None else best[2]
