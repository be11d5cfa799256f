"""Old or wrong behaviour that scenarios show, planted into the production code.

A mutant patches classes of the whole process, so a scenario with one is played in a process of its
own (`suwi.lab.child`). Mutants that only tests use are in `tests/sim/mutants`.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from suwi.lab.text import Text
from suwi.log.leader_epoch_cache import LeaderEpochCache
from suwi.metadata.image import PartitionState
from suwi.model.ids import Offset
from suwi.replica.partition import Partition


@dataclass(frozen=True)
class Mutant:
    name: str
    hazard: int
    """Its number in docs/hazards.md; tests have mutants without one."""
    what: str
    """What the patched code does wrong."""
    patches: tuple[tuple[Any, str, Any], ...]
    """Object or class, attribute, and what replaces it."""
    what_ko: str = field(default="", kw_only=True)
    """Of those that the lab shows: `what` in Korean."""

    def told(self, language: str) -> str:
        return f"{self.name} ({Text(self.what, self.what_ko).in_language(language)})"

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, name, replacement in self.patches:
                stack.enter_context(patch.object(target, name, replacement))
            yield


# Hazard 1: recovery by the high watermark, as Kafka did it before leader epochs (KIP-101).

_make_follower = Partition.make_follower


def _follow_from_the_watermark(self: Partition, state: PartitionState) -> None:
    is_new = self.leader_epoch != state.leader_epoch
    _make_follower(self, state)
    if is_new and not self.is_closed and self.replica_log.prepare():
        self.follower.truncate(self.high_watermark)


_TRUNCATE_TO_WATERMARK = Mutant(
    "truncate-to-watermark",
    1,
    "a follower truncates its log to its own high watermark before it fetches",
    ((Partition, "make_follower", _follow_from_the_watermark),),
    what_ko="팔로워가 fetch하기 전에 자신의 하이워터마크까지 로그를 자른다",
)


# Hazard 3: the answer to a follower's leader epoch, as Kafka gave it before KIP-279.


def _end_of_before_kip_279(
    self: LeaderEpochCache, asked: Any, log_end: Offset
) -> tuple[Any, Offset]:
    """The start of the next epoch, without the epoch that ends there."""
    later = [start for epoch, start in self.entries() if epoch > asked]
    return asked, (later[0] if later else log_end)


def _divergence_before_kip_279(
    self: LeaderEpochCache, last_epoch: Any, offset: Offset, log_end: Offset
) -> tuple[Any, Offset] | None:
    epoch, end = _end_of_before_kip_279(self, last_epoch, log_end)
    return (epoch, end) if end < offset else None


_EPOCH_END_WITHOUT_EPOCH = Mutant(
    "epoch-end-without-epoch",
    3,
    "for an epoch it does not have, a leader answers the start of the next one",
    (
        (LeaderEpochCache, "end_of", _end_of_before_kip_279),
        (LeaderEpochCache, "divergence", _divergence_before_kip_279),
    ),
    what_ko="리더는 자신에게 없는 리더에포크를 물으면 그 다음 에포크의 시작 오프셋을 답한다",
)


# Hazard 13: consumers get records that are not committed.


def _reads_to_the_end(
    self: Partition, offset: Offset, bytes_max: int, *, committed_only: bool, whole_batch: bool
) -> Any:
    """The file has grown since the high watermark was read."""
    partition_log = self.log
    if offset >= self.watermark_as_it_is:
        return None
    return partition_log.read(offset, bytes_max, partition_log.end_offset, whole_batch=whole_batch)


_READ_TO_THE_END = Mutant(
    "read-to-the-end",
    13,
    "a fetch reads up to the current end of the log",
    ((Partition, "read", _reads_to_the_end),),
    what_ko="컨슈머의 fetch가 하이워터마크를 넘어 로그의 끝까지 읽는다",
)

MUTANTS = {
    mutant.name: mutant
    for mutant in (_TRUNCATE_TO_WATERMARK, _EPOCH_END_WITHOUT_EPOCH, _READ_TO_THE_END)
}


def find(name: str) -> Mutant:
    if name not in MUTANTS:
        raise KeyError(f"no mutant is called {name}; there are: {', '.join(MUTANTS)}")
    return MUTANTS[name]
