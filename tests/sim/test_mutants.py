"""Every hazard has a mutant and a transcript, and the transcript catches the mutant.

Whether seeds catch it too, and how many that takes, is in docs/simulation.md: `make sim` looks.
Mutants of faults and of tasks that fail have no transcript: a seed of their fault script must catch
them, and pass without them.
"""

from pathlib import Path

import pytest

from simulation.one_seed import Failure, try_seed
from simulation.scenario import run_seed
from tests.replica.test_transcripts import TRANSCRIPTS
from tests.replica.transcript import parse, play, render
from tests.sim.mutants import FAULT
from tests.sim.mutants import MUTANTS as ALL
from tests.sim.mutants.mutant import Mutant

MUTANTS = [mutant for mutant in ALL if mutant.hazard != FAULT]
OF_FAULTS = [mutant for mutant in ALL if mutant.hazard == FAULT]
SEEDS_MAX = 60
HAZARDS = [*range(1, 14), 21, 22]
BY_HAZARD = [(int(path.stem[:2]), path) for path in TRANSCRIPTS if path.stem[:2].isdigit()]


def test_every_hazard_has_a_mutant_and_a_transcript() -> None:
    assert sorted({mutant.hazard for mutant in MUTANTS}) == HAZARDS
    assert sorted({hazard for hazard, _ in BY_HAZARD}) == HAZARDS


def test_the_page_on_the_simulation_lists_every_mutant() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    assert [m.name for m in ALL if f"`{m.name}`" not in page and "silent-" not in m.name] == []


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_patches_what_exists(mutant: Mutant) -> None:
    """Else it would be caught by the error that the patch itself raises."""
    with mutant.applied():
        pass


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_transcript_of_its_hazard_catches_the_mutant(mutant: Mutant) -> None:
    caught = False
    for hazard, path in BY_HAZARD:
        if hazard == mutant.hazard:
            text = path.read_text()
            blocks = parse(text)
            with mutant.applied():
                try:
                    caught |= render(blocks, play(blocks)) != text
                except Exception:  # A checker, or a broker that stopped itself.
                    caught = True
    assert caught, f"with {mutant.name} ({mutant.what}) all is as it should be"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", OF_FAULTS, ids=lambda mutant: mutant.name)
@pytest.mark.timeout(600)
def test_a_seed_of_its_fault_script_catches_the_mutant_and_passes_without_it(
    mutant: Mutant,
) -> None:
    outcomes = (try_seed(seed, mutant.name, None) for seed in range(SEEDS_MAX))
    caught = next((each.seed for each in outcomes if isinstance(each, Failure)), None)
    assert caught is not None
    run_seed(caught, mutant.options)
