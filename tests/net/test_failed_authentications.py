"""What is counted and what is logged of those who fail to show who they are."""

import logging

import pytest

from suwi.net.listener import FailedAuthentications


@pytest.fixture
def failures(caplog: pytest.LogCaptureFixture) -> FailedAuthentications:
    caplog.set_level(logging.INFO)
    return FailedAuthentications("OUTSIDE")


def facts(record: logging.LogRecord) -> dict[str, object]:
    names = ("listener", "mechanism", "peer", "reason", "user", "suppressed")
    return {name: getattr(record, name) for name in names if hasattr(record, name)}


def test_a_failure_is_told_with_who_and_where(
    failures: FailedAuthentications, caplog: pytest.LogCaptureFixture
) -> None:
    failures.add("PLAIN", "no", "10.0.0.1:5", "alice", 100.0)
    (record,) = caplog.records
    assert facts(record) == {
        "listener": "OUTSIDE",
        "mechanism": "PLAIN",
        "peer": "10.0.0.1:5",
        "reason": "no",
        "user": "alice",
    }


def test_there_is_one_line_a_second_and_it_says_how_many_there_were(
    failures: FailedAuthentications, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5000):
        failures.add("PLAIN" if number % 2 else "TLS", "no", "p", "", 100 + number / 1000)
    assert [facts(record).get("suppressed") for record in caplog.records] == [
        None,
        999,
        999,
        999,
        999,
    ]
    assert failures.by_mechanism == {"PLAIN": 2500, "TLS": 2500}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("", None),
        ("jürgen", "jürgen"),
        ("two\nlines", "two\\nlines"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("x" * 64, "x" * 64),
        ("x" * 65, "x" * 64 + "…"),
        ("x" * 500_000, "x" * 64 + "…"),
    ],
    ids=lambda text: repr(text)[:20],
)
def test_a_users_name_is_one_short_line_whatever_it_is(
    failures: FailedAuthentications,
    caplog: pytest.LogCaptureFixture,
    given: str,
    shown: str | None,
) -> None:
    failures.add("PLAIN", "no", "p", given, 100.0)
    assert facts(caplog.records[0]).get("user") == shown
