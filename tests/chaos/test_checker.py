"""The checker of chaos runs finds every planted fault, and none in a correct run."""

import pytest

from chaos.checker import Row, compare

TOPIC = {(0, 0): 10, (0, 1): 11, (1, 0): 12}
SENT = [10, 11, 12]


def rows(*pipelines: str) -> list[Row]:
    return [Row(pipeline, place, TOPIC[place]) for pipeline in pipelines for place in TOPIC]


def test_a_table_that_is_the_topic_in_each_pipeline_is_exact() -> None:
    verdict = compare(SENT, TOPIC, rows("a", "b"), ["a", "b"])
    assert verdict.is_exact
    assert str(verdict) == "3 records, 6 rows: equal"


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (rows("a", "b")[:-1], "1 missing"),
        (rows("a"), "3 missing"),
        ([*rows("a", "b"), rows("a")[0]], "1 repeated"),
        ([*rows("a", "b"), Row("a", (7, 7), 1)], "1 from nowhere"),
        ([*rows("a", "b")[:-1], Row("b", (1, 0), 99)], "1 changed"),
    ],
)
def test_a_planted_fault_is_found(found: list[Row], complaint: str) -> None:
    verdict = compare(SENT, TOPIC, found, ["a", "b"])
    assert not verdict.is_exact
    assert complaint in str(verdict)


def test_what_the_log_lost_or_doubled_is_not_blamed_on_the_table() -> None:
    assert compare([*SENT, 13], TOPIC, rows("a"), ["a"]).lost_by_the_log == [13]
    doubled = {**TOPIC, (1, 1): 12}
    found = [*rows("a"), Row("a", (1, 1), 12)]
    assert compare(SENT, doubled, found, ["a"]).lost_by_the_log == [12]
