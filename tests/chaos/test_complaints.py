"""A chaos run passes only if it killed every kind of process and worked on the table."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

from chaos.__main__ import complaints, format_report
from chaos.checker import Verdict
from chaos.run import STRIKES, Plan, Report, Run

KILLS = {"driver just after a commit": 10, "Python worker": 6, "broker of three": 4}
UPKEEP = {"compactions": 3, "vacuums": 2, "refused": 0}


def report(**changes: Any) -> Report:
    whole: dict[str, Any] = {
        "kills": Counter(KILLS),
        "suppressed": 1,
        "upkeep": UPKEEP,
        "verdict": Verdict(),
    }
    return Report(**{**whole, **changes})


def test_a_run_that_hit_everybody_and_was_exact_is_good() -> None:
    assert complaints(report()) == []
    assert "beside them: 3 compactions, 2 vacuums, 0 refused" in format_report(report())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"verdict": None}, "the output differs from the topic"),
        ({"verdict": Verdict(lost_by_the_log=[1])}, "the output differs from the topic"),
        ({"suppressed": 0}, "no batch was suppressed"),
        ({"upkeep": {**UPKEEP, "compactions": 0}}, "there were no compactions"),
        ({"upkeep": {**UPKEEP, "vacuums": 0}}, "there were no vacuums"),
        ({"kills": Counter({"Python worker": 10, "broker": 10})}, "no driver was killed"),
        ({"kills": Counter({"driver": 10, "broker": 10})}, "no worker was killed"),
        ({"kills": Counter({"driver's JVM": 10, "Python worker": 10})}, "no broker was killed"),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, Any], complaint: str) -> None:
    assert complaints(report(**changes)) == [complaint]


def test_a_run_without_upkeep_is_not_good_and_a_short_one_need_not_hit_everybody() -> None:
    assert complaints(report(upkeep={})) == ["there were no compactions", "there were no vacuums"]
    assert complaints(report(kills=Counter({"driver": 19}))) == []


def test_every_strike_comes_before_any_comes_again(tmp_path: Path) -> None:
    run = Run(Plan(50, 1), tmp_path, print)
    chosen = [run._choose(10) for _ in range(2 * len(STRIKES))]
    assert sorted(chosen[: len(STRIKES)]) == sorted(chosen[len(STRIKES) :]) == sorted(STRIKES)


def test_upkeep_that_ended_by_itself_is_told_of(tmp_path: Path) -> None:
    run = Run(Plan(50, 1), tmp_path, print)
    run._check_upkeep()  # None was started.
    ended: Any = SimpleNamespace(is_running=False)
    run._upkeep = ended
    (tmp_path / "upkeep.log").write_text("KeyError: 7")
    with pytest.raises(AssertionError, match="upkeep ended by itself: KeyError: 7"):
        run._check_upkeep()
