"""The overview of all goals: one row and one bar for each goal, whatever page it is from."""

from pathlib import Path

from bench import __main__ as bench
from bench import goals
from bench.lines import Row
from bench.overview import Section, range_of, write

CLIENTS = [
    Row("Java", "2 k", "1 k", 2.0, goals.PRODUCE, True, value=2.0, unit="k records/s"),
    Row("librdkafka", "1 k", "1 k", 1.0, goals.PRODUCE, False, value=1.0, unit="k records/s"),
]
SLOWER = Row("start", "1 s", "4 s", 0.25, goals.START, False, value=1_000.0, unit="ms")
WITHOUT_KAFKA = Row("groups", "9 ms", "", None, goals.GROUPS_FAIL_OVER, True, value=9, unit="ms")


def overview(tmp_path: Path, *rows: Row) -> tuple[str, str]:
    write(tmp_path, [Section("results", "One broker", "2026-01-01", list(rows))])
    return (tmp_path / "README.md").read_text(), (tmp_path / "goals.svg").read_text()


def test_figures_of_one_goal_share_a_row_and_a_bar(tmp_path: Path) -> None:
    page, picture = overview(tmp_path, *CLIENTS)
    assert "| 1–2 k records/s | 1–2 × | ≥ 1.2 × Kafka | 1 of 2 |" in page
    assert picture.count("<circle") == 2
    assert "1 to 2 ×" in picture


def test_less_is_better_is_turned_round_in_the_picture(tmp_path: Path) -> None:
    page, picture = overview(tmp_path, SLOWER)
    assert "| 1,000 ms | 0.25 × | ≤ 0.1 × Kafka | ✗ |" in page
    assert ">4 ×</text>" in picture


def test_what_kafka_has_no_figure_for_is_in_the_table_only(tmp_path: Path) -> None:
    page, picture = overview(tmp_path, SLOWER, WITHOUT_KAFKA)
    assert goals.GROUPS_FAIL_OVER.text in page
    assert goals.GROUPS_FAIL_OVER.text not in picture


def test_every_goal_is_that_of_some_figure() -> None:
    code = "".join(
        path.read_text() for path in (bench.ROOT / "bench").rglob("*.py") if path.stem != "goals"
    )
    assert [name for name in goals.wanted_by_name() if name not in code] == []


def test_a_range_of_one_value_is_the_value() -> None:
    assert range_of([2.0, None, 2.0], " ×") == "2 ×"
    assert range_of([None], " ×") == ""


def test_the_pages_are_those_of_the_stored_results(tmp_path: Path) -> None:
    """`make bench` and `--redraw` write them; nothing in them is written by hand."""
    for data in bench.DOCUMENTS.glob("*.json"):
        (tmp_path / data.name).write_bytes(data.read_bytes())
    bench._redraw(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"README.md", "results.md", "goals.svg"}
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (bench.DOCUMENTS / path.name).read_bytes(), path.name
