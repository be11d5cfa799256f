"""Records of `__transaction_state`, with Apache Kafka's schemas: TransactionLogKey and -Value.

A value holds all that is known of one transactional id. Values are written in version 1 and read in
versions 0 and 1; a field that version 0 lacks has its default there.
"""

import enum
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from suwi.coordinator.record import Codec, LongValue, RecordType
from suwi.env.slices import Slices, run_to_end
from suwi.model.ids import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from suwi.wire.errors import MalformedMessage
from suwi.wire.primitives import Reader, count, legacy_string, string, tag_section

_INT16: Final = struct.Struct(">h")
_INT64: Final = struct.Struct(">q")
_IDS: Final = struct.Struct(">qhib")
_TIMES: Final = struct.Struct(">qq")
_TRANSACTION_LOG: Final = 0
_VALUE_VERSION: Final = 1
_FLEXIBLE_FROM: Final = 1
_PARTITIONS_PER_SLICE: Final = 256

_TAGGED: Final = {
    0: ("previous_producer_id", _INT64, NO_PRODUCER_ID),
    1: ("next_producer_id", _INT64, NO_PRODUCER_ID),
    2: ("client_transaction_version", _INT16, 0),
    3: ("next_producer_epoch", _INT16, NO_PRODUCER_EPOCH),
}
"""By tag the field, how it is written, and its default, which is not."""


class TransactionState(enum.IntEnum):
    """With the numbers of Kafka's records. DescribeTransactions shows `label`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True)
class TransactionLogKey:
    transactional_id: str

    def encode(self) -> bytes:
        return _INT16.pack(_TRANSACTION_LOG) + legacy_string(self.transactional_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogValue(LongValue):
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    last_update_ms: int
    start_ms: int = NO_TIMESTAMP
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    """The producer id of the previous state; it differs from `producer_id` after a change of the
    id."""
    next_producer_id: ProducerId = NO_PRODUCER_ID
    """The one to use when this transaction has ended; its epochs are used up."""
    next_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """For two-phase commit (KIP-939); kept, not used."""
    client_transaction_version: int = 0

    @property
    def is_long(self) -> bool:
        return len(self.partitions) > _PARTITIONS_PER_SLICE

    def encode(self, version: int = _VALUE_VERSION) -> bytes:
        return run_to_end(self.encoding(version))

    def encoding(self, version: int = _VALUE_VERSION) -> Slices[bytes]:
        flexible = version >= _FLEXIBLE_FROM
        ids = self.producer_id, self.producer_epoch, self.timeout_ms, self.state
        encoded = [_INT16.pack(version), _IDS.pack(*ids)]
        if self.state is TransactionState.EMPTY:
            encoded.append(count(None, flexible))
        else:
            encoded += yield from _encoding_partitions(self.partitions, flexible)
        encoded.append(_TIMES.pack(self.last_update_ms, self.start_ms))
        if flexible:
            encoded.append(tag_section(self._tags()))
        return b"".join(encoded)

    def _tags(self) -> dict[int, bytes]:
        return {
            tag: layout.pack(value)
            for tag, (name, layout, default) in _TAGGED.items()
            if (value := getattr(self, name)) != default
        }


def in_order(partitions: Iterable[TopicPartition]) -> Slices[list[tuple[str, list[int]]]]:
    """Sorted by topic, in slices, so that the same partitions always give the same bytes."""
    by_topic: dict[str, list[int]] = {}
    for number, (topic, index) in enumerate(partitions, 1):
        by_topic.setdefault(topic, []).append(index)
        if number % _PARTITIONS_PER_SLICE == 0:
            yield
    ordered = []
    in_slice = 0
    for topic in sorted(by_topic):
        ordered.append((topic, sorted(by_topic[topic])))
        in_slice += len(by_topic[topic])
        if in_slice >= _PARTITIONS_PER_SLICE:
            in_slice = 0
            yield
    return ordered


def _encoding_partitions(
    partitions: Iterable[TopicPartition], flexible: bool
) -> Slices[list[bytes]]:
    ordered = yield from in_order(partitions)
    topics = [count(len(ordered), flexible)]
    for number, (topic, indexes) in enumerate(ordered, 1):
        topics += (
            string(topic, flexible),
            count(len(indexes), flexible),
            struct.pack(f">{len(indexes)}i", *indexes),
            b"\0" if flexible else b"",
        )
        if number % _PARTITIONS_PER_SLICE == 0:
            yield
    return topics


def _reading_partitions(reader: Reader, flexible: bool) -> Slices[frozenset[TopicPartition]]:
    partitions: list[TopicPartition] = []
    in_slice = 0
    for _ in range(reader.nullable_count(flexible, 3) or 0):
        topic = reader.string(flexible)
        items = reader.count(flexible, 4)
        indexes = struct.unpack_from(f">{items}i", reader.buffer, reader.take(4 * items))
        for start in range(0, items, _PARTITIONS_PER_SLICE):
            some = indexes[start : start + _PARTITIONS_PER_SLICE]
            partitions += [TopicPartition(topic, PartitionIndex(index)) for index in some]
            in_slice += len(some)
            if in_slice >= _PARTITIONS_PER_SLICE:
                in_slice = 0
                yield
        if flexible:
            reader.skip_tags()
    return frozenset(partitions)


def _read_key(reader: Reader) -> TransactionLogKey:
    return TransactionLogKey(reader.string(False))


def _reading_value(reader: Reader, version: int) -> Slices[TransactionLogValue]:
    flexible = version >= _FLEXIBLE_FROM
    producer_id, producer_epoch, timeout_ms, state = reader.unpack(_IDS)
    partitions = yield from _reading_partitions(reader, flexible)
    last_update_ms, start_ms = reader.unpack(_TIMES)
    tagged = {}
    if flexible:
        for tag, field in reader.tags():
            if tag in _TAGGED:
                name, layout, _ = _TAGGED[tag]
                (tagged[name],) = field.unpack(layout)
    try:
        known_state = TransactionState(state)
    except ValueError as error:
        raise MalformedMessage(f"unknown transaction state {state}") from error
    return TransactionLogValue(
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(producer_epoch),
        timeout_ms=timeout_ms,
        state=known_state,
        partitions=partitions,
        last_update_ms=last_update_ms,
        start_ms=start_ms,
        **tagged,
    )


TRANSACTION_RECORDS: Final = Codec(
    {_TRANSACTION_LOG: RecordType(_read_key, _reading_value, _VALUE_VERSION)}
)
