"""Single requests of one partition, produce and fetch, as the lab and tests send them."""

from collections.abc import Sequence
from typing import Any

from suwi.client.connection import PeerConnection
from suwi.client.isolation_filter import visible_records
from suwi.model.ids import Offset
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.wire.fetch_request import FetchPartition, FetchRequest, FetchTopic, encode_fetch_request
from suwi.wire.fetch_response import FetchedPartition, decode_fetch_response
from suwi.wire.produce import PartitionProduced, decode_produce_response, encode_produce_request
from suwi.wire.versions import ApiKey

_VERSION_PRODUCE = 9
_VERSION_FETCH = 12


async def ask(client: PeerConnection, key: ApiKey, version: int, body: dict[str, Any]) -> Any:
    """The answer to the only request of this connection."""
    answer = await client.call(key, version, body)
    await client.close()
    return answer


async def produce_records(
    client: PeerConnection,
    topic: str,
    records: Sequence[Record],
    *,
    acks: int = -1,
    producer: tuple[int, int, int] | None = None,
    partition: int = 0,
) -> PartitionProduced:
    """Send one batch; `producer` is (producer id, epoch, base sequence)."""
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    batch = build_batch(
        records,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    answer = await client.send(
        ApiKey.PRODUCE, _VERSION_PRODUCE, _produce_request(topic, batch, acks, partition)
    )
    return decode_produce_response(_VERSION_PRODUCE, answer).topics[0].partitions[0]


async def produce_unanswered(client: PeerConnection, topic: str, records: Sequence[Record]) -> None:
    """Send one batch with acks=0; it returns when the request has left."""
    request = _produce_request(topic, build_batch(records), 0)
    client.send_unanswered(ApiKey.PRODUCE, _VERSION_PRODUCE, request)
    await client.drained()


def _produce_request(
    topic: str, batch: bytes | bytearray, acks: int, partition: int = 0
) -> Sequence[bytes | bytearray | memoryview]:
    partitions = [(partition, memoryview(batch))]
    return encode_produce_request(_VERSION_PRODUCE, None, acks, 30_000, [(topic, None, partitions)])


async def fetch_once(
    client: PeerConnection,
    topic: str,
    offset: int,
    wait_ms: int = 0,
    *,
    epoch: int = -1,
    rack: str = "",
) -> FetchedPartition:
    """The response to one request."""
    asked = FetchPartition(
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        max_bytes=1 << 20,
    )
    topics = [FetchTopic(topic, None, [asked])]
    request = FetchRequest(wait_ms, 1, 1 << 20, topics, rack_id=rack)
    encoded = encode_fetch_request(_VERSION_FETCH, request)
    answer = await client.send(ApiKey.FETCH, _VERSION_FETCH, [encoded])
    return decode_fetch_response(_VERSION_FETCH, answer).topics[0].partitions[0]


def records_of(fetched: FetchedPartition) -> list[Record]:
    """What a consumer with isolation.level=read_uncommitted sees."""
    data = fetched.records or b""
    assert isinstance(data, bytes | memoryview)
    return visible_records(bytes(data), Offset(0)).records
