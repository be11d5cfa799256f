"""The table of mechanisms, what each seed is given of it, and what counts as a meeting of two."""

from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from unittest.mock import patch

import pytest

from simulation.fault_kinds import KINDS, KINDS_OF_MECHANISMS
from simulation.mechanism_watch import Activity, MechanismWatch
from simulation.mechanisms import MECHANISMS, PAIRS, mechanisms_of, named, shape_of
from simulation.pair_table import BEGIN, END, PairTable
from simulation.seeded_run import Options, run_seed
from simulation.shape import Shape

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"
SEEDS = (1, 2, 3, 4)


# -- the table -------------------------------------------------------------------------------------


def test_mechanisms_name_fields_of_the_shape_and_kinds_of_faults_that_exist() -> None:
    known = {field.name for field in fields(Shape)}
    for mechanism in MECHANISMS:
        assert set(mechanism.shape) <= known, mechanism.name
        assert set(mechanism.faults) <= {*KINDS, *KINDS_OF_MECHANISMS}, mechanism.name


def test_any_consecutive_seeds_are_given_every_pair() -> None:
    given = {tuple(mechanisms_of(seed)[:2]) for seed in range(1234, 1234 + len(PAIRS))}
    assert given == set(PAIRS)


def test_members_of_two_protocols_are_in_one_group() -> None:
    assert shape_of(named(["classic members", "848 members"]))["mixed"]
    assert "mixed" not in shape_of(named(["classic members", "static members"]))


def test_the_page_has_every_mechanism() -> None:
    written = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert [each.name for each in MECHANISMS if f"| {each.name} |" not in written] == []


# -- meetings --------------------------------------------------------------------------------------


def test_two_meet_if_they_are_active_at_the_same_time() -> None:
    activity = Activity()
    activity.note("pause", 1.0, 2.0)
    activity.note("full disk", 2.5, 3.0)
    assert activity.pairs() == []
    activity.note("pause", 2.9, 3.5)
    assert activity.pairs() == [("pause", "full disk")]


def test_a_mechanism_that_goes_on_is_one_interval() -> None:
    activity = Activity()
    for start_s in (1.0, 1.1, 1.2):
        activity.note("pause", start_s, start_s + 0.1)
    activity.note("full disk", 1.15, 1.16)
    assert activity.pairs() == [("pause", "full disk")]


def test_what_never_met_is_named(tmp_path: Path) -> None:
    table = PairTable()
    met = [(one.name, other.name) for one, other in PAIRS[1:]]
    table.add(met)
    one, other = PAIRS[0]
    assert f"MISSING PAIR: {one.name} and {other.name}" in table.summary()
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    table.write(page)
    written = page.read_text()
    assert f"**Missing: {one.name} and {other.name}.**" in written
    assert "old" not in written
    assert written.startswith("before\n")
    assert written.endswith(f"{END}\nafter\n")


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_whoever_watches_does_not_change_the_run() -> None:
    names = ["min.insync change", "process kill", "offsets expiry", "member expiry"]
    options = Options(trouble_s=3.0, mechanisms=names)
    watched = run_seed(5, options)
    with (
        patch.object(MechanismWatch, "_active", lambda _: ()),
        patch.object(MechanismWatch, "tapped", lambda _: nullcontext()),
    ):
        assert run_seed(5, options).trace_hash == watched.trace_hash
    assert ("min.insync change", "process kill") in watched.pairs


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_a_run_that_must_have_a_mechanism_has_it(mechanism: object) -> None:
    name = mechanism.name  # type: ignore[attr-defined]
    runs = (run_seed(seed, Options(mechanisms=[name])) for seed in SEEDS)
    assert any(name in pair for run in runs for pair in run.pairs)
