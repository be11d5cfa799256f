"""Two versions in turns: a lower figure is distinguished from noise of the machine."""

import pytest

from bench.measure import Figure
from bench.servers import BEFORE, SUWI
from bench.versions import compare


def verdict(metric: str, before: list[float], now: list[float]) -> str:
    figures = [Figure("job", BEFORE, {metric: before}), Figure("job", SUWI, {metric: now})]
    (compared,) = compare(figures)
    return compared.verdict


@pytest.mark.parametrize(
    ("metric", "now", "expected"),
    [
        ("records_per_s", [100.0] * 5, "holds"),
        ("records_per_s", [96.0] * 5, "holds"),
        ("records_per_s", [94.0] * 5, "FALLS"),
        ("records_per_s", [94.0, 93.0, 94.0, 90.0, 99.0], "falls, within the noise"),
        ("p50_ms", [94.0] * 5, "holds"),
        ("p50_ms", [107.0] * 5, "FALLS"),
        ("records_per_s", [50.0] * 4, "too few turns"),
    ],
)
def test_a_figure_holds_or_falls(metric: str, now: list[float], expected: str) -> None:
    assert verdict(metric, [100.0] * len(now), now) == expected


def test_neighbours_are_compared_so_that_a_slow_machine_slows_both() -> None:
    assert verdict("records_per_s", [100, 10, 100, 10, 100], [100, 10, 100, 10, 100]) == "holds"


def test_figures_of_one_version_alone_are_left_out() -> None:
    assert compare([Figure("job", SUWI, {"p50_ms": [1.0]})]) == []
