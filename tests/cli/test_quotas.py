"""`suwi quotas`."""

import re
import time

import pytest

from tests.cli.support import Suwi


def test_quotas_are_set_listed_and_removed(suwi: Suwi) -> None:
    both = ("--user", "*", "--client-id", "app")
    said = suwi.ok("quotas", "set", "producer_byte_rate=1000000", "--user", "alice")
    assert said == "set: user:alice producer_byte_rate=1000000\n"
    suwi.ok("quotas", "set", "consumer_byte_rate=500", "request_percentage=12.5", *both)
    suwi.ok("quotas", "set", "connection_creation_rate=1000", "--ip", "10.0.0.1")
    listed = suwi.ok("quotas", "list")
    assert re.search(r"^user:alice +producer_byte_rate +1000000$", listed, re.M)
    assert suwi.json("quotas", "list", *both) == [
        {
            "entity": "client-id:app user:*",
            "quotas": {"consumer_byte_rate": 500, "request_percentage": 12.5},
        }
    ]
    suwi.ok("quotas", "remove", "request_percentage", *both)
    (left,) = suwi.json("quotas", "list", "--client-id", "app")
    assert left["quotas"] == {"consumer_byte_rate": 500}
    suwi.ok("quotas", "remove", *both)
    suwi.ok("quotas", "remove", "--user", "alice")
    suwi.ok("quotas", "remove", "--ip", "10.0.0.1")
    assert suwi.ok("quotas", "list") == "no quotas\n"
    assert "has no such quota" in suwi.refusal("quotas", "remove", "--user", "alice")


def test_it_is_shown_how_close_clients_are_to_their_quotas(suwi: Suwi) -> None:
    of_client = ("--client-id", "suwi")
    suwi.ok("quotas", "set", "request_percentage=0.001", *of_client)
    limit_s = time.monotonic() + 120
    while not (told := suwi.json("quotas", "usage")):
        assert time.monotonic() < limit_s
    (row,) = told
    assert (row["entity"], row["key"], row["limit"]) == (
        "client-id:suwi",
        "request_percentage",
        0.001,
    )
    assert row["used"] > 0
    assert re.search(
        r"^client-id:suwi +request_percentage +0.001 ", suwi.ok("quotas", "usage"), re.M
    )
    suwi.ok("quotas", "remove", *of_client)
    assert suwi.ok("quotas", "usage") == "no client has used something of a quota lately\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("producer_byte_rate=1",), "name whose quotas"),
        (("producer_byte=1", "--user", "a"), "did you mean 'producer_byte_rate'?"),
        (("producer_byte_rate=much", "--user", "a"), "write KEY=NUMBER"),
        (("producer_byte_rate=0", "--user", "a"), "greater than 0"),
        (("producer_byte_rate=1", "--ip", "10.0.0.1"), "Invalid configuration key"),
        (("connection_creation_rate=1", "--ip", "nowhere"), "is not a valid IP"),
        (("connection_creation_rate=1", "--ip", "*", "--user", "a"), "should not be combined"),
    ],
)
def test_a_mistake_is_named(suwi: Suwi, arguments: tuple[str, ...], problem: str) -> None:
    assert problem in suwi.refusal("quotas", "set", *arguments)
