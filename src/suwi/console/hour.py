"""What was sampled during the last hour: one figure per subject and sample, in bounded memory.

A subject is a topic (records in per second; with the kind `bytes`, bytes), a group (lag in records;
with the kind `age`, in milliseconds) or a broker (records in per second of the partitions that it
leads). A topic has a series only once something was written to it.
"""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

PERIOD_S = 5
_POINTS_MAX = 3600 // PERIOD_S
_SUBJECTS_MAX = 5000
"""Together about 30 MB."""
_NOT_KNOWN = math.nan


class Subject(NamedTuple):
    kind: str
    """`topic`, `bytes`, `group`, `age`, `broker`, or `all` with the name `topic` or `group`: their
    sum."""
    name: str


_OF_TOPICS = ("topic", "bytes")


def _sum(total: float, figure: float) -> float:
    """NaN, which differs from itself, is left out."""
    if figure != figure:
        return total
    return figure if total != total else total + figure


class Hour:
    def __init__(self) -> None:
        self.times_ms: array[int] = array("q")
        self.is_full = False
        """There were more subjects than are kept; those that came later have no series."""
        self.has_bytes = False
        """Whether the brokers count bytes."""
        self._figures: dict[Subject, array[float]] = {}

    def add(self, at_ms: int, figures: Mapping[Subject, float | None]) -> None:
        """One sample; a figure that is None was not known."""
        before = len(self.times_ms)
        self.times_ms.append(at_ms)
        for subject, figure in figures.items():
            is_topic = subject.kind in _OF_TOPICS
            if subject in self._figures or (is_topic and not figure):
                continue
            if len(self._figures) >= _SUBJECTS_MAX:
                self.is_full = True
                break
            self._figures[subject] = array("d", [0.0 if is_topic else _NOT_KNOWN]) * before
        for subject, series in self._figures.items():
            known = figures.get(subject)
            series.append(_NOT_KNOWN if known is None else known)
        if before >= _POINTS_MAX:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        del self.times_ms[0]
        for subject, series in list(self._figures.items()):
            del series[0]
            is_silent = subject.kind in _OF_TOPICS and not any(series)
            if is_silent or all(map(math.isnan, series)):
                del self._figures[subject]

    def total(self, subjects: Iterable[Subject]) -> list[float | None]:
        """The sum of their figures at each time; what is not known is left out of it."""
        total = [_NOT_KNOWN] * len(self.times_ms)
        nothing = [0.0] * len(total)
        for subject in subjects:
            figures: Sequence[float] = self._figures.get(subject, ())
            if not figures and subject.kind in _OF_TOPICS and not self.is_full:
                figures = nothing  # nothing was written to it
            if figures:
                total = list(map(_sum, total, figures))
        return [None if math.isnan(known) else round(known, 1) for known in total]

    def subjects(self, kind: str) -> list[Subject]:
        return [subject for subject in self._figures if subject.kind == kind]
