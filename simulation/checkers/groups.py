"""A partition has one owner, and only who belongs to the newest generation may commit.

In a classic group each generation has one owner. In a consumer group (KIP-848) there is one at any
time, be it that it still has to revoke the partition (hazard G17).
"""

from collections.abc import Iterator

from simulation.group_history import Commit, GroupHistory, Held, Who
from simulation.history import Outcome


def broken_generations(history: GroupHistory) -> Iterator[str]:
    yield from _two_owners(history)
    yield from _two_holders(history)
    accepted = [c for c in history.commits.values() if c.outcome is Outcome.DONE]
    for commit in accepted:
        yield from _of_an_old_generation(history, commit)
        yield from _before_its_assignment(history, commit)
        yield from _of_a_replaced_member(history, commit)
        yield from _of_what_another_holds(history, commit)


def _two_owners(history: GroupHistory) -> Iterator[str]:
    """By what SyncGroup answered. Where both protocols are used, a generation may come twice."""
    if history.is_mixed:
        return
    owners: dict[tuple[str, int, str], str] = {}
    for who, partitions, _ in history.syncs:
        for partition in partitions:
            owner = owners.setdefault((who.group, who.generation, partition), who.owner)
            if owner != who.owner:
                yield f"{partition} belongs to {owner} and to {who}"


def _of_an_old_generation(history: GroupHistory, commit: Commit) -> Iterator[str]:
    """Hazard G1: somebody had its assignment of a later one before this was sent. Not where members
    use both protocols: each then has an epoch of its own, which may be behind."""
    if history.is_mixed:
        return
    for who, _, answered in history.syncs:
        if (
            who.group == commit.who.group
            and answered < commit.sent
            and who.generation > commit.who.generation
        ):
            yield f"{commit} was accepted, though {who} had its assignment"
            return


def _before_its_assignment(history: GroupHistory, commit: Commit) -> Iterator[str]:
    """Hazard G2. A generation that is given up before it is assigned may commit until it is over,
    as in Kafka; so one that was assigned afterwards counts, to who joined it only once: where the
    coordinator died in between, there may be two of the same number."""
    who = commit.who
    assigned = history.assigned.get((who.group, who.generation))
    joined = sum(_is_same(join.who, who) for join in history.joins)
    is_synced = any(_is_same(sync.who, who) for sync in history.syncs)
    if assigned is None or commit.answered is None or joined != 1 or not is_synced:
        return
    if commit.answered < assigned:
        yield f"{commit} was accepted before anything was assigned"


def _is_same(one: Who, other: Who) -> bool:
    return (one.member_id, one.generation) == (other.member_id, other.generation)


def _of_a_replaced_member(history: GroupHistory, commit: Commit) -> Iterator[str]:
    """Hazards G5 and G6: a static member that came back and was told its id is the one that
    counts. Before that the coordinator may die and know only the one before."""
    who = commit.who
    if who.instance_id is None:
        return
    own = [j.answered for j in history.joins if j.who.member_id == who.member_id]
    for join in history.joins:
        if (
            (join.who.group, join.who.instance_id) == (who.group, who.instance_id)
            and join.who.member_id != who.member_id
            and join.answered < commit.sent
        ):
            joined = [j.sent for j in history.joins if j.who.member_id == join.who.member_id]
            if own and min(own) < min(joined):
                yield f"{commit} was accepted, though {join.who.member_id} had replaced it"
                return


def _two_holders(history: GroupHistory) -> Iterator[str]:
    """Hazard G17. Who is taken for dead goes on holding what it had until it hears of it: only
    two whose heartbeats were accepted afterwards are two owners."""
    by_partition: dict[tuple[str, str], list[Held]] = {}
    for held in history.held:
        by_partition.setdefault((held.who.group, held.partition), []).append(held)
    for (_, partition), holders in by_partition.items():
        for at, later in enumerate(holders):
            for earlier in holders[:at]:
                if (
                    earlier.who.member_id != later.who.member_id
                    and _is_holder_after(history, earlier, later.since)
                    and _is_holder_after(history, later, later.since)
                ):
                    yield f"{partition} belongs to {earlier.who} and to {later.who}"


def _is_holder_after(history: GroupHistory, held: Held, tick: int) -> bool:
    """Whether it was certainly an owner until after that moment."""
    return any(
        beat.member_id == held.who.member_id
        and max(tick, held.since) < beat.sent
        and (held.until is None or beat.sent < held.until)
        for beat in history.beats
    )


def _of_what_another_holds(history: GroupHistory, commit: Commit) -> Iterator[str]:
    """Hazards G17 and G20. A member of the classic protocol may commit what it does not have, as in
    Kafka: of such a member counts what it was given last in the generation of the commit, not what
    it had before it joined that one."""
    if commit.answered is None:
        return
    committed = set(commit.offsets)
    if not commit.who.is_consumer:
        committed.intersection_update(_given_last(history, commit))
    for held in history.held:
        if (
            held.who.member_id != commit.who.member_id
            and held.partition in committed
            and held.since < commit.sent
            and _is_holder_after(history, held, commit.answered)
        ):
            yield f"{commit} was accepted, though {held.who} had {held.partition}"
            return


def _given_last(history: GroupHistory, commit: Commit) -> tuple[str, ...]:
    """By SyncGroup, to who commits."""
    given = [
        sync.partitions
        for sync in history.syncs
        if _is_same(sync.who, commit.who) and sync.answered < commit.sent
    ]
    return given[-1] if given else ()
