"""A committed offset is never lost, and moved only by a later commit.

An offset that is read names the commit it is of. It is wrong if that was refused, or if another was
acknowledged before it was read and is certainly later: of a later generation, or sent after the
answer to this one. A commit without an answer may happen at any time after it was sent.
"""

from collections.abc import Iterator

from simulation.group_history import Commit, GroupHistory, OffsetRead
from simulation.history import Outcome


def broken_offsets(history: GroupHistory) -> Iterator[str]:
    for read in history.reads:
        acked = [
            commit
            for commit in history.commits.values()
            if commit.who.group == read.group
            and read.partition in commit.offsets
            and commit.outcome is Outcome.DONE
            and commit.answered is not None
            and commit.answered < read.sent
        ]
        if read.found is None:
            if acked:
                yield f"{read.partition} of {read.group} has no offset after {acked[-1]}"
            continue
        yield from _wrong(history, read, *read.found, acked)


def _wrong(
    history: GroupHistory, read: OffsetRead, offset: int, name: str, acked: list[Commit]
) -> Iterator[str]:
    what = f"{read.partition} of {read.group} is at {offset}"
    found = history.commits.get(name)
    if found is None or found.offsets.get(read.partition) != offset:
        yield f"{what} by {name!r}, which nobody sent"
    elif found.outcome is Outcome.NOT_DONE:
        yield f"{what} by {found}, which was refused"
    else:
        for later in acked:
            if later is not found and _is_later(later, found, is_mixed=history.is_mixed):
                yield f"{what} by {found}; {later} to {later.offsets[read.partition]} is lost"
                return


def _is_later(one: Commit, other: Commit, *, is_mixed: bool) -> bool:
    """KIP-1251: while a member of the consumer protocol owns a partition, it may commit it in the
    name of its earlier epochs. Where both protocols are used only time tells: numbers come twice,
    and members of the classic protocol may commit what they do not own, as in Apache Kafka."""
    is_same = one.who.is_consumer and one.who.member_id == other.who.member_id
    if one.who.generation > other.who.generation and not is_same and not is_mixed:
        return True
    is_done = other.outcome is Outcome.DONE and other.answered is not None
    return is_done and other.answered < one.sent  # type: ignore[operator]
