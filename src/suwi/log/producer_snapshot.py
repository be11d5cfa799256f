"""`.snapshot`: the producer state of a partition at an offset, so that a start need not read the
log.

Apache Kafka's version 1: version, CRC-32C of what follows it, count, then an entry for each
producer with its last batch only.
"""

import struct

from suwi.log.producer_state import ProducedBatch, Producer
from suwi.model.ids import NO_SEQUENCE, Offset, ProducerEpoch, ProducerId
from suwi.records.checksum import crc32c

_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class DamagedSnapshot(Exception):
    """The snapshot is unusable; its contents can be rebuilt from the log."""


def encode_snapshot(producers: list[Producer]) -> bytes:
    body = bytearray(_COUNT.pack(len(producers)))
    for producer in producers:
        last = producer.batches[-1] if producer.batches else None
        body += _ENTRY.pack(
            producer.producer_id,
            producer.epoch,
            last.last_sequence if last else NO_SEQUENCE,
            last.last_offset if last else -1,
            last.offset_delta if last else 0,
            producer.last_timestamp,
            producer.coordinator_epoch,
            producer.txn_first_offset,
        )
    return _HEAD.pack(_VERSION, crc32c(body)) + bytes(body)


def decode_snapshot(data: bytes) -> list[Producer]:
    """Raises `DamagedSnapshot`."""
    try:
        version, crc = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise DamagedSnapshot(f"snapshot version {version} is not supported")
        if crc32c(data[_HEAD.size :]) != crc:
            raise DamagedSnapshot("the checksum is wrong")
        (count,) = _COUNT.unpack_from(data, _HEAD.size)
        first = _HEAD.size + _COUNT.size
        if count < 0 or len(data) != first + count * _ENTRY.size:
            raise DamagedSnapshot("the length is wrong")
        return [_producer(_ENTRY.unpack_from(data, first + i * _ENTRY.size)) for i in range(count)]
    except struct.error:
        raise DamagedSnapshot("the file is too short") from None


def _producer(entry: tuple[int, ...]) -> Producer:
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first = entry
    producer = Producer(
        ProducerId(producer_id),
        ProducerEpoch(epoch),
        last_timestamp=timestamp,
        coordinator_epoch=coordinator_epoch,
        txn_first_offset=Offset(txn_first),
    )
    if sequence != NO_SEQUENCE:
        first_sequence = (sequence - delta) & 0x7FFF_FFFF
        producer.batches.append(
            ProducedBatch(first_sequence, sequence, Offset(offset), delta, timestamp)
        )
    return producer
