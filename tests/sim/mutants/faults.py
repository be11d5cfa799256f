"""Faults that brokers had, put back in: what a disk that fails once, a long cut, a deletion under
requests, a full disk under a pipelined writer and a firewall brought to light.

They have no number among the hazards and no transcript. Each has the fault script that leads to it.
"""

import asyncio
from typing import Any

from suwi.broker.lifelines import Lifelines
from suwi.handlers.list_offsets import ListOffsets
from suwi.log.log_directory import LogDirectory
from suwi.log.partition_log import Appended, LogSlice, PartitionLog
from suwi.metadata.follower import MetadataFollower
from suwi.replica.fetcher import Fetcher
from suwi.sim.scenario import Options
from tests.sim.mutants.mutant import FAULT, Mutant

# -- a fetcher that ends ---------------------------------------------------------------------------

_after_failure = Fetcher._after_failure
_FAILURES_MAX = 1024


async def _dies_of_failures(self: Fetcher, error: Exception, failures: int) -> None:
    if failures >= _FAILURES_MAX:
        self._task.cancel()  # Nobody hears of it, and it is used on.
        await asyncio.sleep(0)
    await _after_failure(self, error, min(failures, 64))


# -- an image that is applied in part --------------------------------------------------------------

_publish = MetadataFollower._publish


def _publishes_once(self: MetadataFollower, image: Any) -> None:
    """What one subscriber could not do is never done: the image counts as applied."""
    apply = self._on_image

    def ends(old: Any, new: Any) -> None:
        try:
            apply(old, new)
        except OSError:
            assert self._task is not None
            self._task.cancel()

    self._on_image = ends
    try:
        _publish(self, image)
    finally:
        self._on_image = apply


_put_away = LogDirectory.put_away


def _puts_away_or_raises(self: LogDirectory, partition: Any) -> str | None:
    """Before anything could be done about it, the disk is asked: it may fail here."""
    self._disk.exists(self.dir_of(partition))
    return _put_away(self, partition)


# -- a deleted log that is taken for a broken disk -------------------------------------------------

_first_at = ListOffsets._first_at


async def _blames_the_disk(self: ListOffsets, log: PartitionLog, timestamp: int) -> Any:
    """Look at the log again after the thread, though it may be deleted by then."""
    found = await _first_at(self, log, timestamp)
    if not log.files.disk.exists(log.dir):
        raise log.state.take_offline(FileNotFoundError(log.dir))
    return found


# -- a refusal for storage after the sequence check ------------------------------------------------


def _checks_sequences_first(
    self: PartitionLog, batch: memoryview, header: Any, epoch: Any, now_ms: int
) -> Appended:
    from suwi.records.batch import place

    if header.producer_id >= 0:
        earlier = self.producers.check(header)
        if earlier is not None:
            return Appended(earlier.first_offset, earlier.last_offset, is_duplicate=True)
    base_offset = self.end_offset
    if epoch != self.epochs.latest:
        self._begin_epoch(epoch, base_offset)
    place(batch, base_offset, epoch)
    return Appended(base_offset, self._write(batch, header, base_offset, now_ms))


# -- pins ------------------------------------------------------------------------------------------

_pin = LogSlice.pin


def _never_unpins(self: LogSlice) -> Any:
    region, _ = _pin(self)
    return region, lambda: None


# -- brokers that depose each other ----------------------------------------------------------------

_refused = Lifelines.refused


async def _forgets_whom_it_deposed(self: Lifelines, *arguments: Any) -> None:
    self._fenced.clear()
    self._deposed.clear()
    await _refused(self, *arguments)


MUTANTS = (
    Mutant(
        "fetcher-dies-of-failures",
        FAULT,
        "a fetcher ends after 1,024 failures, and is used on",
        ((Fetcher, "_after_failure", _dies_of_failures),),
        options=Options(kinds=["reset"], trouble_s=1.0, long_cut=True),
    ),
    Mutant(
        "image-half-applied",
        FAULT,
        "an error while an image is applied ends the metadata follower, and the broker goes on",
        (
            (MetadataFollower, "_publish", _publishes_once),
            (LogDirectory, "put_away", _puts_away_or_raises),
        ),
        options=Options(kinds=["fail deletion"], force={"churns": True}),
    ),
    Mutant(
        "closed-log-is-a-broken-disk",
        FAULT,
        "a look-up by time in a log that is being deleted takes the data directory offline",
        ((ListOffsets, "_first_at", _blames_the_disk),),
        options=Options(kinds=["slow threads"], force={"churns": True, "looks_up_deleted": True}),
    ),
    Mutant(
        "sequence-before-storage",
        FAULT,
        "batches behind one that the disk refused are out of order",
        ((PartitionLog, "append_as_leader", _checks_sequences_first),),
        options=Options(kinds=["fill disk"], force={"pipelines": True, "partitions": 2}),
    ),
    Mutant(
        "pins-that-stay",
        FAULT,
        "a file that was sent stays pinned",
        ((LogSlice, "pin", _never_unpins),),
        options=Options(kinds=["kill"]),
    ),
    Mutant(
        "elections-without-end",
        FAULT,
        "brokers that a firewall separates depose each other's controller again and again",
        ((Lifelines, "refused", _forgets_whom_it_deposed),),
        options=Options(kinds=["refuse"]),
    ),
)
