"""What only brokers know of a pipeline: whether its topics exist, and how far they reach.

`check_topics` looks for the topics of sources, sinks and dead letters, which needs no Spark;
`ask_beginnings`, `ask_between` and `ask_last` ask for offsets.
"""

import json
import re
from collections.abc import Collection, Iterable
from contextlib import closing
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.client.admin import Admin
from suwi.client.errors import is_transient, reason
from suwi.client.offsets import EARLIEST, LATEST, list_offsets
from suwi.model.config_kinds import did_you_mean
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_OFFSET, Offset, TopicPartition
from suwi.spark.offset_resolver import OffsetResolver
from suwi.spark.offsets import CheckpointMismatch, Offsets, to_json
from suwi.spark.options import BadOption, SourceOptions, read_connection, read_source_options
from suwi.spark.pipeline.checkpoint import Checkpoint, NotLocal
from suwi.spark.pipeline.checks import options_of, resolved, where_is
from suwi.spark.pipeline.nodes import Problem
from suwi.spark.pipeline.spec import Pipeline, TopicSource, TopicSpec
from suwi.spark.pipeline.text import Text
from suwi.spark.session import Session

_PATIENCE: Final = {"kafka.default.api.timeout.ms": "5000"}
_EXISTS: Final = ErrorCode.topic_already_exists
_DELETED: Final = (
    "any more, and the checkpoint has offsets of it. With failOnDataLoss: false in the options a "
    "run goes on without it, and reads it from its beginning if it is created again; `suwi "
    "pipeline reset` lets it begin anew"
)


class TopicCheck(NamedTuple):
    missing: list[Problem]
    """Topics that do not exist, and brokers that refuse to answer."""
    not_asked: list[Problem]
    """Brokers that cannot be reached: nothing is known about their topics."""
    awaited: list[Problem]
    """Patterns that match no topic yet."""
    created: list[str]


def check_topics(pipeline: Pipeline, *, is_start: bool = False) -> TopicCheck:
    """is_start: the run begins now. Outputs are created if the file has `create_topics: true`, and
    with `failOnDataLoss: false` topics of the source may have been deleted."""
    found = TopicCheck([], [], [], [])
    for name, one in pipeline.inputs.items():
        source, where = one.source, where_is(name)
        if isinstance(source, TopicSource):
            texts = options_of(source)
            given = {name.lower(): text.value.strip().lower() for name, text in texts.items()}
            may_be_gone = is_start and given.get("failondataloss") == "false"
            there = None if may_be_gone else _topics(where, texts, found)
            if there is not None:
                _check_source(where, source, there, _read_before(pipeline), found)
    for where, sink in pipeline.sinks.items():
        if not isinstance(sink, TopicSpec) or sink.topic is None:
            continue
        there = _topics(where, options_of(sink), found)
        name = sink.topic.value
        if there is None or name in there:
            continue
        if not pipeline.create_topics:
            text = (
                f"{where}.topic: there is no topic {name!r}: create it, or set create_topics: true"
            )
            found.missing.append(Problem(sink.topic.line, text))
        elif is_start:
            _topics(where, options_of(sink), found, create=sink.topic)
    return found


def _read_before(pipeline: Pipeline) -> set[str]:
    """The topics of which the checkpoint has offsets."""
    try:
        position = Checkpoint(pipeline.checkpoint.value).position()
    except (NotLocal, CheckpointMismatch):
        return set()
    return set() if position is None else {partition.topic for partition in position.offsets}


def _check_source(
    where: str, source: TopicSource, there: set[str], before: Collection[str], found: TopicCheck
) -> None:
    for topic in source.topics:
        name = topic.value
        if name not in there:
            hint = f" {_DELETED}" if name in before else did_you_mean(name, there)
            text = f"{where}.topics: there is no topic {name!r}{hint}"
            found.missing.append(Problem(topic.line, text))
    if source.pattern is not None:
        pattern = re.compile(source.pattern.value)
        if not any(pattern.search(name) for name in there):
            text = f"{where}.pattern: no topic matches it yet: a run waits for the first"
            found.awaited.append(Problem(source.pattern.line, text))


def _topics(
    where: str, texts: dict[str, Text], found: TopicCheck, *, create: Text | None = None
) -> set[str] | None:
    """The names of all topics, after this one was created; None if the brokers do not answer."""
    line = texts["kafka.bootstrap.servers"].line
    try:
        session = Session(read_connection({**_PATIENCE, **resolved(texts)}))
    except BadOption as error:  # The files of TLS.
        found.missing.append(Problem(line, f"{where}: {error}"))
        return None
    try:
        if create is not None:
            session.run(Admin(session.cluster).create_topic(create.value))
            found.created.append(create.value)
        return {topic.name for topic in session.run(session.cluster.topics())}
    except (BrokerError, OSError) as error:
        if create is None:
            problems = found.not_asked if is_transient(error) else found.missing
            problems.append(Problem(line, f"{where}.servers: {reason(error)}"))
        elif not isinstance(error, BrokerError) or error.code is not _EXISTS:
            text = f"{where}.topic: {create.value!r} cannot be created: {reason(error)}"
            found.missing.append(Problem(create.line, text))
        return None
    finally:
        session.close()


# -- offsets ---------------------------------------------------------------------------------------


class Extent(NamedTuple):
    partition: TopicPartition
    earliest: int
    start: int
    """The position of the pipeline, or the beginning of a range."""
    end: int

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "partition": str(self.partition)}


def ask_beginnings(source: TopicSource, offsets: Offsets) -> list[Extent]:
    """Where the partitions of a checkpoint begin and end. Raises `BrokerError`, OSError.

    Those of a topic that is gone, of which there is nothing to be read again, are as they stand.
    """
    with closing(Session(_options(source).connection)) as session:
        names = {topic.name for topic in session.run(session.cluster.topics())}
        there = [partition for partition in offsets if partition.topic in names]
        earliest = {**offsets, **_ask(session, there, EARLIEST)}
        latest = {**offsets, **_ask(session, there, LATEST)}
    return [Extent(one, earliest[one], offsets[one], latest[one]) for one in sorted(offsets)]


def ask_between(source: TopicSource, start_ms: int, end_ms: int) -> list[Extent]:
    """The offsets of a range of time. Raises `BrokerError`, OSError."""
    earliest, latest, start, end = _ask_all(source, EARLIEST, LATEST, start_ms, end_ms)
    return [
        Extent(one, earliest[one], _or(start[one], latest[one]), _or(end[one], latest[one]))
        for one in sorted(earliest)
    ]


def ask_last(source: TopicSource, records: int) -> str:
    """Offsets, as JSON, from which on there are about so many. Raises `BrokerError`, OSError."""
    earliest, latest = _ask_all(source, EARLIEST, LATEST)
    share = -(-records // max(1, len(earliest)))
    starting = {one: Offset(max(earliest[one], latest[one] - share)) for one in earliest}
    return json.dumps(to_json(starting))


def _ask_all(source: TopicSource, *times: int) -> list[dict[TopicPartition, int]]:
    """For each time, the offsets of all partitions of the source."""
    options = _options(source)
    with closing(Session(options.connection)) as session:
        partitions = session.run(OffsetResolver(session.cluster, options).partitions())
        committed = options.read.committed_only
        return [_ask(session, partitions, time, committed_only=committed) for time in times]


def _or(offset: int, otherwise: int) -> int:
    return otherwise if offset == NO_OFFSET else offset


def compacted_topics(source: TopicSource, topics: Collection[str]) -> list[str]:
    """Raises `BrokerError`, OSError."""
    with closing(Session(_options(source).connection)) as session:
        admin = Admin(session.cluster)
        policies = session.run(admin.topic_settings(sorted(topics), "cleanup.policy"))
    return sorted(topic for topic, policy in policies.items() if "compact" in policy)


def _ask(
    session: Session,
    partitions: Iterable[TopicPartition],
    time: int,
    *,
    committed_only: bool = False,
) -> dict[TopicPartition, int]:
    times = dict.fromkeys(partitions, time)
    if not times:
        return {}
    found = session.run(list_offsets(session.cluster, times, committed_only=committed_only))
    return {partition: one.offset for partition, one in found.items()}


def _options(source: TopicSource) -> SourceOptions:
    return read_source_options(resolved(options_of(source)), streaming=True)
