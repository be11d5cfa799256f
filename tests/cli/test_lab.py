"""`suwi lab`."""

from pathlib import Path

import pytest
from rich.cells import cell_len

from suwi.cli.lab import wrapped
from suwi.lab.events import Violation, read
from suwi.lab.library import ORDER
from tests.cli.support import Suwi

MINE = """topic orders b1 b2
produce b1 acks=all "x"
----
"""
CLAIM = """orders: leader b1, epoch 0, in sync b1 b2
b1 end 0 -> 1, hw 0 -> 1
b2 end 0 -> 1, hw 0 -> 1
"x" is acknowledged at offset 0
"""


@pytest.fixture
def suwi(monkeypatch: pytest.MonkeyPatch) -> Suwi:
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.delenv("LC_MESSAGES", raising=False)
    return Suwi("")


def test_scenarios_are_listed_in_the_language_of_the_user(
    suwi: Suwi, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = suwi.ok("lab", "list")
    names = [line.split()[0] for line in listed.splitlines() if line[0] != " "]
    assert names == list(ORDER)
    assert max(map(len, listed.splitlines())) <= 80
    assert "loses a committed" in listed
    assert "유실" in suwi.ok("lab", "list", "--lang", "ko")
    monkeypatch.setenv("LANG", "ko_KR.UTF-8")
    assert "유실" in suwi.ok("lab", "list")


@pytest.mark.parametrize("language", ["en", "ko"])
def test_a_scenario_is_shown_with_the_prose_of_one_language(suwi: Suwi, language: str) -> None:
    shown = suwi.ok("lab", "show", "lost-acknowledgement", "--lang", language)
    assert "cut b1 -> p1" in shown
    assert ("응답" in shown) == (language == "ko")
    assert ("the same batch again" in shown) == (language == "en")


def test_a_scenario_is_played_step_by_step_and_then_without_the_harm(suwi: Suwi) -> None:
    shown = suwi.ok("lab", "run", "lost-acknowledgement")
    assert "── Step 3 of 4 " in shown
    assert '    b1 shows 0 "x", 1 "x"' in shown
    harm, _, instead = shown.partition("── Instead ")
    assert "b1 leader  │x e0│x e0║" in harm
    assert '    + b1 shows 0 "x"' in instead
    assert "b1 leader  │x e0║" in instead
    assert shown.endswith("All that the scenario claims is true.\n")
    assert max(map(len, shown.splitlines())) <= 80


def test_a_scenario_with_planted_behaviour_says_so(suwi: Suwi) -> None:
    shown = suwi.ok("lab", "run", "kip-101")
    assert "Planted for this run: truncate-to-watermark" in shown
    assert "violated: " in shown


def test_a_file_of_ones_own_that_is_right_succeeds_and_one_that_is_wrong_fails(
    suwi: Suwi, tmp_path: Path
) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(MINE + CLAIM)
    assert "All that the scenario claims is true." in suwi.ok("lab", "run", file)
    file.write_text(MINE + "nothing changes\n")
    result = suwi("lab", "run", file)
    assert result.exit_code == 1
    assert "  ! nothing changes" in result.stdout
    file.write_text(MINE.removesuffix("----\n"))
    assert "The file claims nothing" in suwi.ok("lab", "run", file)


def test_what_is_done_instead_asserts_nothing_until_lines_are_below_it(
    suwi: Suwi, tmp_path: Path
) -> None:
    file = tmp_path / "mine.txt"
    instead = "\ninstead\n- topic orders b1 b2\n+ topic orders b1\n"
    file.write_text(MINE + CLAIM + instead)
    assert "    - b2 end 0 -> 1, hw 0 -> 1\n" in suwi.ok("lab", "run", file)
    file.write_text(MINE + CLAIM + instead + "----\n")
    assert suwi("lab", "run", file).exit_code == 1


def test_a_mistake_in_a_file_is_explained_with_its_line(suwi: Suwi, tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("topic orders b1\nkil b1\n")
    said = suwi.refusal("lab", "run", file)
    assert "mine.txt, line 2: there is no command `kil`; did you mean `kill`?" in said
    file.write_text("topic orders b1\n\nstart b1\n")
    assert "line 3: `start b1` cannot be run" in suwi.refusal("lab", "run", file)
    assert "scenarios: kip-101" in suwi.refusal("lab", "run", tmp_path / "absent.txt")
    assert "kip101; did you mean kip-101?" in suwi.refusal("lab", "run", "kip101")
    assert "'fr' is not one of en, ko" in suwi.misuse("lab", "run", "kip-101", "--lang", "fr")


def test_the_commands_are_listed_for_those_who_write_a_scenario(suwi: Suwi) -> None:
    listed = suwi.ok("lab", "commands")
    assert "cut b1 <-> b2" in listed
    assert "Steps are separated by empty lines" in listed
    assert "\n    retries=2147483647\n" in listed
    assert "\n    group.instance.id=\n" in listed
    assert max(map(cell_len, listed.splitlines())) <= 80


def test_a_recording_is_written_and_shown_at_its_violation(suwi: Suwi, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    suwi.ok("lab", "run", "kip-101", "--record", file)
    recording = read(file.read_text().splitlines())
    assert recording.source == "kip-101"
    at = next(n for n, event in enumerate(recording.events, 1) if isinstance(event, Violation))
    shown = suwi.ok("lab", "show", file, "--last", "3").splitlines()
    assert shown[0].endswith(f" events, here {at - 2} to {at}")
    assert " violation " in "\n".join(shown[3:5])
    assert "b1 down" in "\n".join(shown)
    assert len([line for line in shown if line.startswith("violated at ")]) == 3
    assert max(map(len, shown)) <= 80
    korean = suwi.ok("lab", "show", file, "--last", "3", "--lang", "ko").splitlines()
    assert korean[0].endswith(f"개 중 {at - 2}번부터 {at}번까지")
    assert len([line for line in korean if "초에 위반: " in line]) == 3
    file.write_text('{"kind":"recording","version":9}')
    assert "has version 9; this reads 1" in suwi.refusal("lab", "show", file)


def test_prose_is_wrapped_by_what_a_terminal_shows() -> None:
    assert wrapped("가나 다라 마바", 9) == ["가나 다라", "마바"]
    assert wrapped("", 9) == []
    assert wrapped("set: org.apache.kafka", 10) == ["set:", "org.apache", ".kafka"]
