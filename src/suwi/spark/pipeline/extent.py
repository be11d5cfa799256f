"""How much a command is about: offsets by partition, asked of the brokers beforehand."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from suwi.client.offsets import EARLIEST, LATEST, list_offsets
from suwi.env import local_env
from suwi.model.ids import NO_OFFSET, TopicPartition
from suwi.spark.offset_resolver import OffsetResolver
from suwi.spark.offsets import Offsets
from suwi.spark.options import SourceOptions, read_source_options
from suwi.spark.pipeline.option_checks import source_options
from suwi.spark.pipeline.script import Between
from suwi.spark.pipeline.spec import Pipeline
from suwi.spark.session import Session


class Extent(NamedTuple):
    partition: str
    earliest: int
    start: int
    """Where it stands, or where a range begins."""
    end: int

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


def ask_beginnings(pipeline: Pipeline, offsets: Offsets) -> list[Extent]:
    """Where the partitions of a checkpoint begin and end. Raises `BrokerError`, OSError."""
    options = _options(pipeline)
    session = Session(options.connection)
    try:
        earliest = _ask(session, dict.fromkeys(offsets, EARLIEST))
        latest = _ask(session, dict.fromkeys(offsets, LATEST))
    finally:
        session.close()
    return [
        Extent(str(partition), earliest[partition], offsets[partition], latest[partition])
        for partition in sorted(offsets)
    ]


def ask_between(pipeline: Pipeline, between: Between) -> list[Extent]:
    """The offsets of a range of time. Raises `BrokerError`, OSError."""
    options = _options(pipeline)
    session = Session(options.connection)
    try:
        partitions = session.run(OffsetResolver(session.cluster, options).partitions())
        earliest = _ask(session, dict.fromkeys(partitions, EARLIEST))
        latest = _ask(session, dict.fromkeys(partitions, LATEST))
        start = _ask(session, dict.fromkeys(partitions, between.start_ms))
        end = _ask(session, dict.fromkeys(partitions, between.end_ms))
    finally:
        session.close()
    return [
        Extent(
            str(one),
            earliest[one],
            _or(start[one], latest[one]),
            _or(end[one], latest[one]),
        )
        for one in sorted(partitions)
    ]


def _or(offset: int, otherwise: int) -> int:
    return otherwise if offset == NO_OFFSET else offset


def _ask(session: Session, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    found = session.run(list_offsets(session.cluster, times)) if times else {}
    return {partition: one.offset for partition, one in found.items()}


def _options(pipeline: Pipeline) -> SourceOptions:
    disk = local_env().disk
    texts = source_options(pipeline.source)
    return read_source_options(
        {name: text.resolve(os.environ, disk) for name, text in texts.items()}, streaming=True
    )
