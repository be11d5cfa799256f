"""Bugs that brokers had, put back in. They were found with a disk that fails once, a long cut, a
deletion under requests, a full disk under a pipelined writer and a firewall.

They have no number among the hazards and no transcript. Each has the fault script that leads to it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from simulation.seeded_run import Options
from suwi.controller.failure_detector import FailureDetector
from suwi.handlers.list_offsets import ListOffsets
from suwi.handlers.refused_batches import RefusedBatches, _Refusals, _Sequences
from suwi.log.log_directory import LogDirectory
from suwi.log.log_segments import LogSlice
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.replica.partition import Partition
from suwi.replica.replica_fetcher import ReplicaFetcher
from suwi.replica.replica_manager import ReplicaManager
from tests.sim.mutants.mutant import FAULT, ScriptedMutant

# -- a fetcher that ends ---------------------------------------------------------------------------

_after_failure = ReplicaFetcher._after_failure
_FAILURES_MAX = 1024


async def _dies_of_failures(self: ReplicaFetcher, error: Exception, failures: int) -> None:
    if failures >= _FAILURES_MAX:
        self._task.cancel()  # Nobody notices, and the fetcher stays in use.
        await asyncio.sleep(0)
    await _after_failure(self, error, min(failures, 64))


# -- an image that is applied in part --------------------------------------------------------------

_apply = MetadataFollower._apply


async def _dies_of_an_image(self: MetadataFollower, old: Any, new: Any) -> None:
    """After an error of one subscriber the follower ends, and nobody notices."""
    try:
        await _apply(self, old, new)
    except RuntimeError:
        assert self._task is not None
        self._task.cancel()


_mark_for_deletion = LogDirectory.mark_for_deletion


def _marks_for_deletion_or_raises(self: LogDirectory, partition: Any) -> str | None:
    """The error is not expected here."""
    try:
        return _mark_for_deletion(self, partition)
    except OSError as error:
        raise RuntimeError("not expected") from error


def _not_isolated(self: ReplicaManager, tp: Any, step: Callable[[], None]) -> None:
    step()


# -- a deleted log that is taken for a broken disk -------------------------------------------------

_first_at = ListOffsets._first_at


async def _blames_the_disk(self: ListOffsets, partition: Partition, timestamp: int) -> Any:
    """Read the log again after the thread, though it may be deleted by then."""
    log = partition.log
    found = await _first_at(self, partition, timestamp)
    if not log.files.disk.exists(log.dir):
        raise log.state.take_offline(FileNotFoundError(log.dir))
    return found


# -- refusals that are not remembered, or only the lowest ------------------------------------------


def _holds_nothing_back(self: RefusedBatches, *arguments: Any) -> None:
    pass


def _keeps_the_lowest(self: _Refusals, header: Any) -> None:
    """If that one is in the log, nothing is known of the others."""
    if not self.batches or header.base_sequence < self.batches[0].first:
        self.batches = [_Sequences(header.base_sequence, header.last_sequence)]


# -- pins ------------------------------------------------------------------------------------------

_pin = LogSlice.pin


def _never_unpins(self: LogSlice) -> Any:
    region, _ = _pin(self)
    return region, lambda: None


# -- brokers that depose each other ----------------------------------------------------------------

_refused = FailureDetector.refused


async def _forgets_whom_it_deposed(self: FailureDetector, *arguments: Any) -> None:
    self._fenced.clear()
    self._deposed.clear()
    await _refused(self, *arguments)


MUTANTS = (
    ScriptedMutant(
        "fetcher-dies-of-failures",
        FAULT,
        "a fetcher ends after 1,024 failures, and stays in use",
        ((ReplicaFetcher, "_after_failure", _dies_of_failures),),
        options=Options(kinds=["reset"], trouble_s=1.0, long_cut=True),
    ),
    ScriptedMutant(
        "image-half-applied",
        FAULT,
        "an error while an image is applied ends the metadata follower, and the broker continues",
        (
            (MetadataFollower, "_apply", _dies_of_an_image),
            (ReplicaManager, "_isolated", _not_isolated),
            (LogDirectory, "mark_for_deletion", _marks_for_deletion_or_raises),
        ),
        options=Options(kinds=["fail deletion"], force={"churns": True}),
    ),
    ScriptedMutant(
        "closed-log-is-a-broken-disk",
        FAULT,
        "a look-up by time in a log that is being deleted takes the data directory offline",
        ((ListOffsets, "_first_at", _blames_the_disk),),
        options=Options(kinds=["slow threads"], force={"churns": True, "looks_up_deleted": True}),
    ),
    ScriptedMutant(
        "sequence-before-storage",
        FAULT,
        "batches after one that the disk refused are rejected as out of order",
        ((RefusedBatches, "check", _holds_nothing_back),),
        options=Options(kinds=["fill disk"], force={"pipelines": True, "partitions": 2}),
    ),
    ScriptedMutant(
        "refusal-hides-a-gap",
        FAULT,
        "of the refused batches only the first is remembered, also if it is in the log",
        ((_Refusals, "add", _keeps_the_lowest),),
        options=Options(
            kinds=["freeze", "cut"],
            force={
                "pipelines": True,
                "partitions": 1,
                "copiers": 0,
                "replication_factor": 2,
                "min_insync_replicas": 2,
            },
        ),
    ),
    ScriptedMutant(
        "pins-that-stay",
        FAULT,
        "a file that was sent stays pinned",
        ((LogSlice, "pin", _never_unpins),),
        options=Options(kinds=["kill"]),
    ),
    ScriptedMutant(
        "elections-without-end",
        FAULT,
        "brokers that a firewall separates depose each other's controller again and again",
        ((FailureDetector, "refused", _forgets_whom_it_deposed),),
        options=Options(kinds=["refuse"]),
    ),
)
