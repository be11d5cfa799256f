"""Every hazard has a mutant and a transcript, and the mutant fails at a named step of it.

Whether seeds catch it too, and how many that takes, is in docs/simulation.md: `make sim` looks.
Mutants of faults and of tasks that fail have no transcript: a seed of their fault script must catch
them, and pass without them.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from simulation.one_seed import Failure, try_seed
from simulation.seeded_run import run_seed
from suwi.lab.library import ORDER, scenario_of
from suwi.lab.scenario import Scenario, parse
from suwi.lab.stage import changes, play
from tests.replica.test_transcripts import TRANSCRIPTS
from tests.sim.mutants import FAULT, Mutant, find, options_of
from tests.sim.mutants import MUTANTS as ALL

MUTANTS = [mutant for mutant in ALL if mutant.hazard != FAULT]
OF_FAULTS = [mutant for mutant in ALL if mutant.hazard == FAULT]
SEEDS_MAX = 60
HAZARDS = [*range(1, 14), 21, 22]
BY_NAME = {path.stem: path for path in TRANSCRIPTS}
CAUGHT_AT = [
    ("kip-101", "truncate-to-watermark", 4),
    ("diverging-logs", "epoch-end-without-epoch", 7),
    ("uncommitted-read", "read-to-the-end", 3),
    ("min-insync-replicas", "commit-below-minimum", 4),
    ("unclean-election", "no-epoch-truncation", 7),
    ("read-from-followers", "read-to-the-end", 5),
    ("leader-epoch-checkpoint", "truncate-to-watermark", 6),
    ("01-restart-with-a-stale-watermark", "truncate-to-watermark", 4),
    ("02-different-data-at-one-offset", "no-epoch-truncation", 6),
    ("03-two-quick-fail-overs", "epoch-end-without-epoch", 8),
    ("04-fenced-and-unknown-epochs", "any-leader-epoch", 3),
    ("05-a-diverging-fetch-is-no-progress", "diverging-fetch-counts", 5),
    ("06-truncate-before-the-watermark", "watermark-before-truncation", 5),
    ("07-joining-a-new-leader", "join-at-watermark", 4),
    ("08-an-unconfirmed-shrink", "unconfirmed-shrink", 2),
    ("09-a-stopped-leader", "isr-without-controller", 4),
    ("10-a-restarted-follower", "isr-without-broker-epochs", 6),
    ("11-a-fenced-controller", "deposed-controller-writes", 3),
    ("12a-nothing-is-committed-below-the-minimum", "commit-below-minimum", 4),
    ("12b-a-suspect-does-not-lead", "power-loss-is-a-crash", 4),
    ("13-readers-stop-at-the-watermark", "read-to-the-end", 3),
    ("21-a-recreated-topic", "topics-by-name", 3),
    ("22-the-same-leader-two-epochs-later", "same-leader-no-check", 6),
]
"""In which step of which scenario a mutant shows first; docs/lab.md has the same table."""


def test_every_hazard_has_a_mutant_and_a_transcript() -> None:
    assert sorted({mutant.hazard for mutant in MUTANTS}) == HAZARDS
    assert sorted({int(name[:2]) for name in BY_NAME if name[:2].isdigit()}) == HAZARDS


def test_the_page_on_the_simulation_lists_every_mutant() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    assert [m.name for m in ALL if f"`{m.name}`" not in page and "silent-" not in m.name] == []


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_patches_what_exists(mutant: Mutant) -> None:
    """Else it would be caught by the error that the patch itself raises."""
    with mutant.applied():
        pass


def first_difference(scenario: Scenario, mutant: Mutant) -> int | None:
    """The first step in which something else happens with the mutant. Violations count."""
    usual = [list(step.expected or ()) for step in scenario.played]
    if scenario.mutant is not None:  # The file says what happens with it.
        usual = changes(play(replace(scenario, mutant=None)))
    with mutant.applied():
        found = changes(play(replace(scenario, mutant=mutant.name)))
    steps = enumerate(zip(usual, found, strict=True), 1)
    return next((number for number, (one, other) in steps if one != other), None)


@pytest.mark.parametrize(("name", "mutant", "step"), CAUGHT_AT)
def test_a_mutant_fails_at_the_named_step_of_the_scenario(
    name: str, mutant: str, step: int
) -> None:
    scenario = scenario_of(name) if name in ORDER else parse(BY_NAME[name].read_text())
    assert first_difference(scenario, find(mutant)) == step


def test_every_mutant_of_a_hazard_is_caught_by_the_transcript_of_that_hazard() -> None:
    caught = {(mutant, int(name[:2])) for name, mutant, _ in CAUGHT_AT if name[:2].isdigit()}
    assert caught == {(mutant.name, mutant.hazard) for mutant in MUTANTS}


def test_the_page_on_the_lab_has_the_table_of_mutants_and_steps() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| (\d+) \|", page, re.MULTILINE)
    assert [(name, mutant, int(step)) for name, mutant, step in rows] == CAUGHT_AT


@pytest.mark.slow
@pytest.mark.parametrize("mutant", OF_FAULTS, ids=lambda mutant: mutant.name)
@pytest.mark.timeout(600)
def test_a_seed_of_its_fault_script_catches_the_mutant_and_passes_without_it(
    mutant: Mutant,
) -> None:
    outcomes = (try_seed(seed, mutant.name, None) for seed in range(SEEDS_MAX))
    caught = next((each.seed for each in outcomes if isinstance(each, Failure)), None)
    assert caught is not None
    run_seed(caught, options_of(mutant))
