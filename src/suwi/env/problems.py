"""What is wrong with a broker now: one list, which status, doctor, metrics and the log agree on.

A component reports a problem when it notices the first effect (`report`) and resolves it when it is
over (`resolve`). DescribeBroker returns the list, the metric `suwi_problems` counts it, and each
beginning and end is one log line.
Invariant: at most one problem of each kind at each place.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from suwi.env import Clock

log = logging.getLogger(__name__)

LISTED_MAX: Final = 100
"""How many problems a broker describes; the metric counts all."""
_REPORT: Final = "report the traceback in the broker's log; the broker tries again by itself"


def because(error: object, **fields: object) -> dict[str, object]:
    """The `extra` of a log line about an error: these fields, and the reason."""
    told = {name: value if isinstance(value, int) else str(value) for name, value in fields.items()}
    return {**told, "reason": str(error)}


class ProblemKind(Enum):
    """The name of each kind in metrics and JSON, and what to do about it."""

    DISK_FULL = "disk-full", "free space or extend the volume; writes resume by themselves"
    DIRECTORY_OFFLINE = "directory-offline", "check the disk, then restart the broker"
    LOG_UNREADABLE = (
        "log-unreadable",
        "give the broker's user access to its files; the broker tries again by itself",
    )
    TOPIC_ID_UNREADABLE = (
        "topic-id-unreadable",
        "stop the broker and run `suwi repair partition-metadata` as the reason says",
    )
    START_OFFSETS_LOST = (
        "start-offsets-lost",
        "repeat DeleteRecords where it was used; the next start finds the file written again",
    )
    NO_DESCRIPTORS = (
        "no-descriptors",
        "raise the broker's limit of open files (ulimit -n, LimitNOFILE) and restart it",
    )
    CONNECTIONS_REFUSED = (
        "connections-refused",
        "close clients, or raise the limit of open files (ulimit -n) or max.connections",
    )
    AUDIT_LOG_FAILED = (
        "audit-log-failed",
        "free space, or give the broker's user access to audit.log.dir; it tries again by itself",
    )
    TOKEN_KEYS_UNREADABLE = (
        "token-keys-unreadable",
        "check sasl.oauthbearer.jwks.endpoint.url and its server; the broker tries again by itself",
    )
    PARTITION_FAILED = "partition-failed", _REPORT
    COORDINATOR_FAILED = "coordinator-failed", _REPORT
    TASK_FAILING = "task-failing", _REPORT
    DAMAGED_BATCH = (
        "damaged-batch",
        "check the disk; another in-sync replica replaces it, without one: `suwi repair segments`",
    )

    def __init__(self, label: str, advice: str) -> None:
        self.label = label
        self.advice = advice


class Problem(NamedTuple):
    kind: ProblemKind
    place: str
    """A data directory, a partition, a file or a listener."""
    reason: str
    since_ms: int

    def as_fields(self) -> dict[str, str | int]:
        """As DescribeBroker returns it."""
        return {
            "kind": self.kind.label,
            "place": self.place,
            "reason": self.reason,
            "advice": self.kind.advice,
            "since_ms": self.since_ms,
        }


class Problems:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._current: dict[tuple[ProblemKind, str], Problem] = {}
        self._last_ms: dict[tuple[ProblemKind, str], int] = {}
        """When each was reported last."""

    def __iter__(self) -> Iterator[Problem]:
        """The oldest first."""
        return iter(list(self._current.values()))

    def report(self, kind: ProblemKind, place: str, reason: str) -> None:
        """Begins a problem, or shows that it goes on, perhaps for another reason."""
        now_ms = self._last_ms[kind, place] = self._clock.now_ms()
        known = self._current.get((kind, place))
        if known is not None:
            if known.reason != reason:
                self._current[kind, place] = known._replace(reason=reason)
            return
        self._current[kind, place] = Problem(kind, place, reason, now_ms)
        log.error(
            "problem",
            extra={"kind": kind.label, "place": place, "reason": reason, "do": kind.advice},
        )

    def report_if_repeated(
        self, kind: ProblemKind, place: str, reason: str, within_ms: int
    ) -> None:
        """As `report`, from the second time within that period on."""
        last_ms, now_ms = self._last_ms.get((kind, place)), self._clock.now_ms()
        self._last_ms[kind, place] = now_ms
        if last_ms is not None and now_ms - last_ms < within_ms:
            self.report(kind, place, reason)

    def resolve(self, kind: ProblemKind, place: str) -> None:
        """Nothing happens if it is not known."""
        if self.forget(kind, place):
            log.info("problem is over", extra={"kind": kind.label, "place": place})

    def resolve_quiet(self, kind: ProblemKind, quiet_ms: int) -> None:
        """Resolve those that were not reported for so long: nobody notices their end."""
        for _, place in [key for key in self._current if key[0] is kind]:
            if self._clock.now_ms() - self._last_ms[kind, place] >= quiet_ms:
                self.resolve(kind, place)

    def forget(self, kind: ProblemKind, place: str) -> bool:
        """The place does not exist any more. Returns whether the problem was known."""
        self._last_ms.pop((kind, place), None)
        return self._current.pop((kind, place), None) is not None

    def has(self, kind: ProblemKind) -> bool:
        return any(known is kind for known, _ in self._current)

    def counts(self) -> Counter[str]:
        """By the label of the kind, with zero for those that are not there."""
        counts = Counter({kind.label: 0 for kind in ProblemKind})
        counts.update(problem.kind.label for problem in self)
        return counts
