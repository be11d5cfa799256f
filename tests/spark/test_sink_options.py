"""The options of the topic sink: used, taken with a word, or refused by name."""

import logging

import pytest

from suwi.spark.options import BadOption
from suwi.spark.sink_options import NOTED, REFUSED, SinkOptions, read_sink_options


def sink(**options: str) -> SinkOptions:
    """`kafka__acks="1"` is the option kafka.acks."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    return read_sink_options({"kafka.bootstrap.servers": "127.0.0.1:9092", **given})


@pytest.mark.parametrize("name", [*NOTED, "kafka.metadata.max.age.ms"])
def test_what_has_no_effect_is_taken_with_a_word(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink(**{name: "1"})
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert said.getMessage().startswith(f"option {name} has no effect: ")


def test_what_has_an_effect_is_taken_without(caplog: pytest.LogCaptureFixture) -> None:
    sink(topic="a", kafka__acks="1", kafka__linger__ms="5", checkpointLocation="/c")
    assert not caplog.records


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_by_name(name: str) -> None:
    with pytest.raises(BadOption, match=f"{name}' is not supported: "):
        sink(**{name: "1"})


@pytest.mark.parametrize(
    "name",
    [
        "kafka.compression.gzip.level",
        "kafka.compression.lz4.level",
        "kafka.compression.zstd.level",
        "kafka.transaction.timeout.ms",
        "kafka.transaction.two.phase.commit.enable",
    ],
)
def test_the_newer_keys_of_kafkas_producer_are_known(name: str) -> None:
    assert name in NOTED or name in REFUSED
