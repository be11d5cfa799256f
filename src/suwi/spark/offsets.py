"""Where to begin and where to end: the connector's ways to say it, and offsets as JSON.

`read_bound` understands the options; `to_json` and `from_json` are the form that Spark keeps in a
checkpoint: `{"topic": {"0": 23}}`, as the connector has it. Beside the topics stand, under names
that no topic can have, where a first batch began and the topics' ids. `LossReporter` is for records
that are gone before they were read.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from suwi.model.ids import Offset, PartitionIndex, TopicPartition

log = logging.getLogger(__name__)

LATEST: Final = Offset(-1)
EARLIEST: Final = Offset(-2)

Offsets: TypeAlias = dict[TopicPartition, Offset]

# No topic can be called so. Spark asks for the initial offsets of a query again when it was
# stopped in its first batch, and "latest" would by then be later: the end of the first batch
# carries where that batch began.
_BEGAN: Final = "#began"
# A topic that was deleted and created again has the same name and another id.
_IDS: Final = "#ids"
NOT_TOPICS: Final = frozenset({_BEGAN, _IDS})


_WAY_OUT = (
    "Records were removed by retention or DeleteRecords, or a topic was deleted, before they were "
    'read. To go on with what is there, set the option failOnDataLoss to "false"'
)


class DataLoss(RuntimeError):
    """Records that a query had to read no longer exist."""


class CheckpointMismatch(RuntimeError):
    """The checkpoint belongs to another query; the text says what to do."""


class LossReporter:
    def __init__(self, *, fail: bool) -> None:
        self._fail = fail

    def report(self, what: str, way_out: str = _WAY_OUT) -> None:
        """Raises `DataLoss`, or logs a warning."""
        if self._fail:
            raise DataLoss(f"{what}. {way_out}.")
        log.warning("data lost: %s", what)


class BadOffsets(ValueError):
    """An option about offsets that cannot be understood or used."""


@dataclass(frozen=True, slots=True)
class Everywhere:
    """The same offset of every partition: EARLIEST or LATEST."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class ByPartition:
    offsets: Mapping[TopicPartition, Offset]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that is not older. Where there is none: the end, or an error."""

    times_ms: Mapping[TopicPartition, int] | int
    """One for all partitions, or each its own."""
    or_latest: bool

    def time_ms(self, partition: TopicPartition) -> int:
        return self.times_ms if isinstance(self.times_ms, int) else self.times_ms[partition]


Bound: TypeAlias = Everywhere | ByPartition | AtTime


def read_bound(
    options: Mapping[str, str], which: str, default: Offset, *, or_latest: bool
) -> Bound:
    """From `{which}Timestamp`, else `{which}OffsetsByTimestamp`, else `{which}Offsets`."""
    timestamp = options.get(f"{which}timestamp")
    if timestamp is not None:
        name = f"{which}Timestamp"
        return AtTime(_integer(name, timestamp), or_latest)
    by_timestamp = options.get(f"{which}offsetsbytimestamp")
    if by_timestamp is not None:
        name = f"{which}OffsetsByTimestamp"
        return AtTime(_by_partition(name, by_timestamp, least=0), or_latest)
    text = options.get(f"{which}offsets", "").strip()
    match text.lower():
        case "":
            return Everywhere(default)
        case "earliest":
            return Everywhere(EARLIEST)
        case "latest":
            return Everywhere(LATEST)
    numbers = _by_partition(f"{which}Offsets", text, least=EARLIEST)
    return ByPartition({partition: Offset(number) for partition, number in numbers.items()})


def read_partitions(text: str) -> list[TopicPartition]:
    """The value of `assign`."""
    try:
        found = json.loads(text)
        return [
            TopicPartition(topic, PartitionIndex(_whole(number)))
            for topic, numbers in found.items()
            for number in numbers
        ]
    except (ValueError, TypeError, AttributeError):
        raise BadOffsets(f'assign: expected like {{"a":[0,1],"b":[2]}}, got {text}') from None


def _by_partition(name: str, text: str, least: int) -> dict[TopicPartition, int]:
    try:
        numbers = {
            TopicPartition(topic, PartitionIndex(int(partition))): _whole(number)
            for topic, partitions in json.loads(text).items()
            for partition, number in partitions.items()
        }
    except (ValueError, TypeError, AttributeError):
        words = "earliest, latest or " if name.endswith("Offsets") else ""
        like = f'{words}like {{"a":{{"0":23,"1":5}}}}'
        raise BadOffsets(f"{name}: expected {like}, got {text}") from None
    for partition, number in numbers.items():
        if number < least:
            raise BadOffsets(f"{name}: {number} of {partition} is too small")
    return numbers


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise TypeError
    return number


def _integer(name: str, text: str) -> int:
    try:
        number = int(text.strip())
    except ValueError:
        number = -1
    if number < 0:
        raise BadOffsets(f"{name}: expected milliseconds since 1970, got {text}")
    return number


# -- offsets of a query ----------------------------------------------------------------------------


def to_json(
    offsets: Mapping[TopicPartition, int], ids: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """In a fixed order: Spark compares texts to see whether there is anything new."""
    by_topic: dict[str, Any] = {}
    for partition in sorted(offsets):
        numbers = by_topic.setdefault(partition.topic, {})
        numbers[str(partition.partition)] = int(offsets[partition])
    known = {topic: ids[topic] for topic in by_topic if topic in ids} if ids else {}
    return {**by_topic, _IDS: known} if known else by_topic


def topic_ids(offsets: Mapping[str, Any]) -> dict[str, str]:
    """By topic; empty in offsets of the connector and of releases that did not keep them."""
    return dict(offsets.get(_IDS, {}))


def replaced_topics(start: Mapping[str, Any], ids: Mapping[str, str]) -> set[str]:
    """Topics of `start` that have another id now."""
    return {topic for topic, id_ in topic_ids(start).items() if ids.get(topic, id_) != id_}


def from_json(by_topic: Mapping[str, Any]) -> Offsets:
    """Raises `CheckpointMismatch` for the offset of another source."""
    if not all(isinstance(one, Mapping) for one in by_topic.values()):
        raise CheckpointMismatch(
            "this checkpoint belongs to a table or another source, and the query reads topics: its "
            f"offset is {json.dumps(by_topic)}. Give the query a checkpoint of its own"
        )
    return {
        TopicPartition(topic, PartitionIndex(int(partition))): Offset(offset)
        for topic, partitions in by_topic.items()
        if topic not in NOT_TOPICS
        for partition, offset in partitions.items()
    }


def with_beginning(end: dict[str, Any], start: Mapping[str, Any]) -> dict[str, Any]:
    """The end of a query's first batch, which also says where that batch began."""
    return {**end, _BEGAN: dict(start)}


def where_it_began(end: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where the query began, if the end of a batch says so."""
    return end.get(_BEGAN)


def beginning(start: Mapping[str, Any], end: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where a batch begins: what its end says if it is the first, else where the last ended."""
    began = where_it_began(end)
    return start if began is None or where_it_began(start) is not None else began


def describe(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(partition) for partition in sorted(partitions)) or "none"
