"""Parsing of broker addresses."""

import pytest

from suwi.client.addresses import Address, parse_addresses


def test_several_addresses_are_separated_by_commas() -> None:
    assert parse_addresses("a:1, b:2 ,[::1]:3") == [
        Address("a", 1),
        Address("b", 2),
        Address("::1", 3),
    ]


def test_the_default_port_is_kafkas() -> None:
    assert parse_addresses("kafka.example,[::1]") == [
        Address("kafka.example", 9092),
        Address("::1", 9092),
    ]


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert [str(a) for a in parse_addresses("[::1]:3,h:4")] == ["[::1]:3", "h:4"]


@pytest.mark.parametrize("text", ["", ",", "h:", "h:x", "h:0", "h:65536", ":9092", "::1:9092"])
def test_an_invalid_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="9092"):
        parse_addresses(text)
