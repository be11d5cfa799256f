"""Two versions of Suwi against each other in one run: does any figure get worse?

The versions alternate in every job, as brokers do in the comparison with Apache Kafka. A ratio is
that of two neighbours, one turn of each version, so that a slow moment of the machine slows both;
the tables show the median of the ratios and their middle half.
"""

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.homes import enter_version
from bench.jobs import warm_up
from bench.measure import Figure
from bench.plan import Plan
from bench.report import Results, setting, write_json
from bench.rig import Rig, rig
from bench.servers import BEFORE, SUWI

FALLS_BELOW = 0.95
PAIRS_MIN = 5
_HOW_TO_READ = (
    "A ratio above 1 is better, whichever way better is: the median over pairs of neighbouring "
    "turns, and the middle half of them. *Best* compares the best turn of each version, as other "
    "work on the machine can only make a turn worse. Raced against itself, a version shows what "
    "the machine does to these figures."
)
# Metric, more is better: what is compared, for figures that have it.
_COMPARED = {
    "records_per_s": True,
    "gb_per_s": True,
    "requests_per_s": True,
    "server_cpu_s_per_million": False,
    "server_cpu_us_per_request": False,
    "p50_ms": False,
    "p99_ms": False,
    "first_ack_ms": False,
    "rss_mb": False,
    "create_s": False,
}

Shared = Callable[[Rig], list[Figure]]
Own = Callable[[Plan, tuple[str, ...]], list[Figure]]


@dataclass(frozen=True)
class Comparison:
    job: str
    metric: str
    before: float
    now: float
    ratio: float  # above 1: the new version is better
    low: float
    high: float
    best: float  # of the best turn of each: other work can only make a turn worse
    pairs: int

    @property
    def verdict(self) -> str:
        if self.pairs < PAIRS_MIN:
            return "too few turns"
        if self.ratio >= FALLS_BELOW:
            return "holds"
        may_be_noise = max(self.high, self.best) >= FALLS_BELOW
        return "falls, within the noise" if may_be_noise else "FALLS"

    def __str__(self) -> str:
        return (
            f"{self.ratio:6.3f} × [{self.low:.3f} to {self.high:.3f}, best {self.best:.3f}] "
            f"{self.verdict:<24} "
            f"{self.job}: {self.metric} {self.before:.4g} → {self.now:.4g}"
        )


def compare(figures: Iterable[Figure]) -> list[Comparison]:
    found = {(figure.job, figure.system): figure for figure in figures}
    compared = []
    for (job, system), now in found.items():
        before = found.get((job, BEFORE))
        if system != SUWI or before is None:
            continue
        compared += [
            _compare(job, metric, before.values[metric], now.values[metric], more)
            for metric, more in _COMPARED.items()
            if metric in now.values and metric in before.values
        ]
    return compared


def _compare(
    job: str, metric: str, before: list[float], now: list[float], more_is_better: bool
) -> Comparison:
    pairs = list(zip(before, now, strict=True))
    ratios = [new / old if more_is_better else old / new for old, new in pairs]
    spread = Figure(job, metric, {metric: ratios})
    low, high = spread.middle_half(metric)
    return Comparison(
        job=job,
        metric=metric,
        before=statistics.median(before),
        now=statistics.median(now),
        ratio=spread.median(metric),
        low=low,
        high=high,
        best=max(now) / max(before) if more_is_better else min(before) / min(now),
        pairs=len(pairs),
    )


def measure(
    plan: Plan,
    source: Path,
    shared: Mapping[str, Shared],
    own: Mapping[str, Own],
    *,
    with_java: bool,
) -> Iterator[list[Figure]]:
    """The figures of one job after the other, of the version in `source` and of this one."""
    enter_version(BEFORE, source)
    brokers = (SUWI, BEFORE)
    if shared:
        with rig(plan, brokers, with_java=with_java, with_yardsticks=False) as running:
            warm_up.everything(running)
            for job in shared.values():
                yield job(running)
    for own_job in own.values():
        yield own_job(plan, brokers)


def check_source(source: Path) -> None:
    if not (source / "suwi" / "__init__.py").is_file():
        sys.exit(f"--against {source}: no package `suwi` there; name a directory like `…/src`")


def write(directory: Path, results: Results, source: Path) -> list[Comparison]:
    compared = compare(results.figures)
    write_json(directory / "versions.json", results)
    lines = [
        "# This version against another",
        "",
        setting(results),
        "",
        f"Against `{source}`, in turns. {_HOW_TO_READ}",
        "",
        "| job | metric | before | now | ratio | middle half | best | pairs | |",
        "|---" * 9 + "|",
        *(
            f"| {c.job} | {c.metric} | {c.before:.4g} | {c.now:.4g} | {c.ratio:.3f} × "
            f"| {c.low:.3f} to {c.high:.3f} | {c.best:.3f} × | {c.pairs} | {c.verdict} |"
            for c in compared
        ),
    ]
    (directory / "versions.md").write_text("\n".join(lines) + "\n")
    return compared


def show(compared: Iterable[Comparison]) -> None:
    """The worst first."""
    for each in sorted(compared, key=lambda c: c.ratio):
        print(each)
