"""Checks whether a correct log could have shown clients what a `History` has recorded.

`violations` runs every check; each check is a function and looks for one kind of violation.
Pure: used by the simulation, by tests with real clients, and by chaos tests. A check is never
weakened: losses beyond the budget must have been reported (`History.reported_lost`).
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from simulation.history import FinalLog, History, LookUp, Outcome, Position, Reading, Seen, Write

_NEWEST = -1
"""ListOffsets: LATEST."""


class Violation(NamedTuple):
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


Check = Callable[[History], Iterable[str]]


def violations(history: History) -> list[Violation]:
    """All violations, in a fixed order; none for a correct log."""
    return [Violation(kind, what) for kind, check in CHECKS.items() for what in check(history)]


# -- writes ------------------------------------------------------------------------------------


def lost_writes(history: History) -> Iterator[str]:
    """A record that was acknowledged with acks=all is there at the end."""
    stored = {
        (name, value) for name, log in history.finals.items() for value in log.records.values()
    }
    for write in history.writes.values():
        log = history.finals.get(write.partition)
        if log is None or not write.is_promised or (write.partition, write.value) in stored:
            continue
        if history.transaction_of(write) is not Outcome.DONE:
            continue  # `torn_transactions` checks transactions without an outcome.
        if write.offset < log.start if write.offset is not None else log.start > 0:
            continue  # Deleted by retention, or perhaps, if its offset is unknown.
        if not history.is_reported(write.partition, write.offset):
            yield f"{write}, acknowledged at offset {write.offset}, is gone"


def two_values(history: History) -> Iterator[str]:
    """Each offset has one value for ever: acknowledgements, readers and the final log agree."""
    claims: dict[tuple[str, int], dict[bytes, str]] = {}

    def claim(partition: str, offset: int, value: bytes, by: str) -> None:
        if not history.is_reported(partition, offset):
            claims.setdefault((partition, offset), {}).setdefault(value, by)

    for write in history.writes.values():
        if write.is_promised and write.offset is not None:
            claim(write.partition, write.offset, write.value, "the acknowledgement")
    for reading in history.readings:
        for partition, offset, value in _seen(reading):
            claim(partition, offset, value, reading.name)
    for partition, log in history.finals.items():
        for offset, value in log.records.items():
            claim(partition, offset, value, "the log at the end")
    for (partition, offset), values in claims.items():
        if len(values) > 1:
            told = ", ".join(f"{value!r} according to {by}" for value, by in values.items())
            yield f"{partition} offset {offset}: {told}"


def invented_records(history: History) -> Iterator[str]:
    """No record is read that nobody sent, that was refused, or that was sent elsewhere."""
    for partition, offset, value, by in _all_seen(history):
        write = history.writes.get(value)
        if write is None:
            yield f"{partition} offset {offset}: {by} has {value!r}, which nobody sent"
        elif write.partition != partition:
            yield f"{partition} offset {offset}: {by} has {write}"
        elif write.outcome is Outcome.NOT_DONE:
            yield f"{partition} offset {offset}: {by} has {write}, which was refused"


def duplicates(history: History) -> Iterator[str]:
    """A record of an idempotent writer is stored once, or again after its loss was reported.

    As in Apache Kafka, a new replica does not know a producer whose records are all deleted: as
    leader it accepts what that producer sends again.
    """
    for name, places in _by_reader(history):
        at: dict[tuple[str, bytes], list[int]] = {}
        for partition, offset, value in places:
            log = history.finals.get(partition)
            is_gone = log is None or log.records.get(offset) != value
            if is_gone and history.is_reported(partition, offset):
                continue
            is_deleted = is_gone and offset < history.deleted.get(partition, 0)
            if is_deleted and history.replicas_move:
                continue
            offsets = at.setdefault((partition, value), [])
            if offset not in offsets:
                offsets.append(offset)
        for (_, value), offsets in at.items():
            write = history.writes.get(value)
            if len(offsets) > 1 and write is not None and write.idempotent:
                yield f"{write} is at offsets {offsets}, according to {name}"


def reordered_writes(history: History) -> Iterator[str]:
    """Records of an idempotent writer are in a partition in the order in which it sent them.

    A write that the client gave up may still be in flight, and arrive after later ones.
    """
    order = {value: number for number, value in enumerate(history.writes)}
    for partition, log in history.finals.items():
        last: dict[str, Write] = {}
        for offset in sorted(log.records):
            write = history.writes.get(log.records[offset])
            if write is None or not write.idempotent or write.outcome is not Outcome.DONE:
                continue
            before = last.get(write.writer)
            if before is not None and order[before.value] > order[write.value]:
                yield f"{partition} offset {offset}: {write} comes after {before.value!r}"
            last[write.writer] = write


# -- transactions ------------------------------------------------------------------------------


def aborted_reads(history: History) -> Iterator[str]:
    """A reader with read_committed sees no record of an aborted transaction."""
    for name, places in _by_reader(history, committed_only=True):
        for partition, offset, value in places:
            write = history.writes.get(value)
            if write is not None and history.transaction_of(write) is Outcome.NOT_DONE:
                yield f"{partition} offset {offset}: {name} has {write}, which was aborted"


def torn_transactions(history: History) -> Iterator[str]:
    """All records of a transaction are there at the end, or none; all, if it was committed."""
    stored = {value for log in history.finals.values() for value in log.records.values()}
    members: dict[str, list[Write]] = {}
    for write in history.writes.values():
        if write.transaction is not None and write.partition in history.finals:
            members.setdefault(write.transaction, []).append(write)
    for transaction, writes in members.items():
        # A refused write is not part of it: the commit would have failed.
        missing = [w for w in writes if w.value not in stored and w.outcome is not Outcome.NOT_DONE]
        missing = [w for w in missing if not history.is_reported(w.partition, w.offset)]
        present = [write for write in writes if write.value in stored]
        must_be_whole = history.transactions[transaction] is Outcome.DONE or present
        if missing and must_be_whole and history.transactions[transaction] is not Outcome.NOT_DONE:
            yield f"{transaction}: {len(present)} of {len(writes)} records, {missing[0]} is not"


# -- readers -----------------------------------------------------------------------------------


def uncommitted_reads(history: History) -> Iterator[str]:
    """What a reader has read stays: a record that vanishes later was not committed."""
    for reading in history.readings:
        for partition, offset, value in _seen(reading):
            log = history.finals.get(partition)
            if log is None or offset < log.start or offset in log.records:
                continue
            write = history.writes.get(value)
            undecided = write is not None and history.transaction_of(write) is not Outcome.DONE
            if undecided and not reading.committed_only:
                continue  # read_uncommitted may see what is aborted later.
            if not history.is_reported(partition, offset):
                yield f"{partition} offset {offset}: {reading.name} has read {value!r}, now gone"


def reordered_reads(history: History) -> Iterator[str]:
    """A reader's offsets increase, within a poll and from poll to poll, unless it seeks."""
    for reading in history.readings:
        for partition, run in _runs(reading):
            for before, after in pairwise(run.seen):
                if after.offset <= before.offset:
                    yield (
                        f"{partition}: {reading.name} was given offset {after.offset} "
                        f"after {before.offset}"
                    )
            if run.seen and run.seen[0].offset < run.start:
                first = run.seen[0].offset
                yield f"{partition}: {reading.name} asked from {run.start}, was given {first}"


def skipped_records(history: History) -> Iterator[str]:
    """A reader skips no record between two that it has read."""
    for reading in history.readings:
        for partition, run in _runs(reading):
            log = history.finals.get(partition)
            if log is None or not run.seen:
                continue
            seen = {each.offset for each in run.seen}
            for offset in range(max(run.start, log.start), max(seen)):
                if offset in log.records and offset not in seen:
                    yield f"{partition}: {reading.name} was given later ones, but not {offset}"


def unseen_records(history: History) -> Iterator[str]:
    """A reader that has finished has read everything from its start.

    Except what was deleted before it got there, with an error: after a crash of all replicas
    those records can be there again.
    """
    for reading in history.readings:
        if not reading.is_finished:
            continue
        for partition, events in reading.events.items():
            log = history.finals.get(partition)
            if log is None:
                continue
            places = [event.offset for event in events if isinstance(event, Position)]
            begin, deleted = min(places), min(max(places), history.deleted.get(partition, 0))
            seen = {event.offset for event in events if isinstance(event, Seen)}
            missing = [o for o in _offsets_from(log, begin) if o not in seen and o >= deleted]
            if missing:
                yield (
                    f"{partition}: {reading.name} never saw {len(missing)} records, "
                    f"the first at offset {missing[0]}"
                )


# -- look-ups ----------------------------------------------------------------------------------


def wrong_look_ups(history: History) -> Iterator[str]:
    """A look-up by time returns the first record that is as new, and its timestamp."""
    for look_up in history.look_ups:
        partition, offset = look_up.partition, look_up.offset
        log = history.finals.get(partition)
        if log is None or look_up.asked < 0 or offset < 0 or history.is_reported(partition, None):
            continue
        what = f"{partition}: {look_up.client} asked for {look_up.asked}, got offset {offset}"
        stamp = log.timestamps.get(offset, look_up.timestamp)
        if look_up.timestamp < look_up.asked or stamp != look_up.timestamp:
            yield f"{what} and {look_up.timestamp}; that record has {stamp}"
        deleted = history.deleted.get(partition, 0)
        earlier = [
            other
            for other, timestamp in log.timestamps.items()
            if deleted <= other < offset and timestamp >= look_up.asked
        ]
        if earlier:
            yield f"{what}, but offset {min(earlier)} is as new"


def fallen_newest_offsets(history: History) -> Iterator[str]:
    """KIP-207: the newest offset that one client gets never decreases, whoever leads.

    A leader of an earlier epoch, which a client may still ask, does not know better: its responses
    are ignored, as are partitions with reported losses.
    """
    last: dict[tuple[str, str], LookUp] = {}
    for look_up in history.look_ups:
        partition = look_up.partition
        if look_up.asked != _NEWEST or history.is_reported(partition, None):
            continue
        before = last.get((look_up.client, partition))
        if before is not None and look_up.leader_epoch < before.leader_epoch:
            continue
        last[look_up.client, partition] = look_up
        if before is not None and look_up.offset < before.offset:
            yield (
                f"{partition}: {look_up.client} got {before.offset} in epoch "
                f"{before.leader_epoch}, then {look_up.offset} in epoch {look_up.leader_epoch}"
            )


CHECKS: dict[str, Check] = {
    "lost": lost_writes,
    "two values": two_values,
    "invented": invented_records,
    "duplicate": duplicates,
    "reordered write": reordered_writes,
    "aborted read": aborted_reads,
    "torn transaction": torn_transactions,
    "uncommitted read": uncommitted_reads,
    "reordered read": reordered_reads,
    "skipped": skipped_records,
    "unseen": unseen_records,
    "wrong look-up": wrong_look_ups,
    "newest offset fell": fallen_newest_offsets,
}


# -- iterating over a history --------------------------------------------------------------------


class Place(NamedTuple):
    partition: str
    offset: int
    value: bytes


class _Run(NamedTuple):
    """What a reader has read between two positions it chose."""

    start: int
    seen: list[Seen]


def _seen(reading: Reading) -> Iterator[Place]:
    for partition, events in reading.events.items():
        for event in events:
            if isinstance(event, Seen):
                yield Place(partition, event.offset, event.value)


def _runs(reading: Reading) -> Iterator[tuple[str, _Run]]:
    for partition, events in reading.events.items():
        runs: list[_Run] = []
        for event in events:
            if isinstance(event, Position):
                runs.append(_Run(event.offset, []))
            else:
                runs[-1].seen.append(event)
        for run in runs:
            yield partition, run


def _final(history: History) -> Iterator[Place]:
    for partition, log in history.finals.items():
        for offset, value in log.records.items():
            yield Place(partition, offset, value)


def _by_reader(
    history: History, *, committed_only: bool = False
) -> Iterator[tuple[str, Iterator[Place]]]:
    for reading in history.readings:
        if reading.committed_only or not committed_only:
            yield reading.name, _seen(reading)
    yield "the log at the end", _final(history)


def _all_seen(history: History) -> Iterator[tuple[str, int, bytes, str]]:
    for name, places in _by_reader(history):
        for place in places:
            yield *place, name


def _offsets_from(log: FinalLog, begin: int) -> Iterator[int]:
    return (offset for offset in sorted(log.records) if offset >= begin)
