"""What running pipelines tell of themselves, in a compacted topic: the last word of each.

`publish_status` writes a record whose key is the pipeline's name, and creates the topic if there is
none. `read_statuses` reads the last record of each pipeline. The schema is in docs/pipeline.md;
records that are not like it are left out, because anybody who may write to the topic can write one.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Final, NamedTuple

from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.connection import ConnectionLost
from suwi.client.offsets import EARLIEST, LATEST, list_offsets
from suwi.client.partition_history import describe_partition_history
from suwi.client.partition_sender import ProducerSettings
from suwi.client.producer import Producer
from suwi.client.reader import Reader
from suwi.env import Clock
from suwi.model.errors import BrokerError, TopicAlreadyExists, UnknownTopicOrPartition
from suwi.model.ids import PartitionIndex, TopicPartition

STATUS_TOPIC: Final = "suwi-pipelines"
STATUS_EVERY_S: Final = 10
"""How often a pipeline that runs publishes its status, at least."""
_SILENT_AFTER_MS: Final = 3_500 * STATUS_EVERY_S
_WAITS_MS_MAX: Final = 60_000
"""For how long a pipeline waits for its next attempt."""
_VERSION: Final = 1
_CONFIGS: Final = {
    "cleanup.policy": "compact",
    # The closed segments are compacted: the topic stays small enough to be read as a whole.
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
# The next status replaces it: no producer id for each, and no long waiting for a leader.
_STATUS_PRODUCER: Final = ProducerSettings(acks=1, delivery_timeout_s=5, request_timeout_s=5)
_BROKERS_ASKED: Final = 3
_VALUE_BYTES_MAX: Final = 64 * 1024
_READ_BYTES_MAX: Final = 32 * 1024 * 1024
_TEXT_MAX: Final = 1_000

RUNNING: Final = "running"
WAITING: Final = "waiting"
"""After a failure, for the next attempt."""
STOPPED: Final = "stopped"
FAILED: Final = "failed"
SILENT: Final = "silent"
"""It was running or waiting, and has published nothing for a while: killed, or cut off."""


class QueryStatus(NamedTuple):
    query: str
    about: str
    """From where to where."""
    group: str | None
    """The consumer group that has its progress."""
    batch: int
    """The number of the last batch that is done; -1 before the first."""
    batch_ms: int
    rows: int
    """Since the pipeline was started."""
    rows_per_s: float
    lag: int | None
    """Records that are left to read; None where it is not known."""
    done_ms: int | None
    """When the last batch was done, or found to be empty."""


class PipelineStatus(NamedTuple):
    pipeline: str
    state: str
    host: str
    started_ms: int
    published_ms: int
    restarts: int
    error: str | None
    """The last failure of this run."""
    error_ms: int | None
    queries: Sequence[QueryStatus]

    def seen_at(self, now_ms: int) -> "PipelineStatus":
        """`silent` if it should have published another one by now."""
        overdue_ms = {RUNNING: _SILENT_AFTER_MS, WAITING: _WAITS_MS_MAX + _SILENT_AFTER_MS}
        age_ms, most_ms = now_ms - self.published_ms, overdue_ms.get(self.state)
        return self if most_ms is None or age_ms <= most_ms else self._replace(state=SILENT)


async def is_suwi(cluster: Cluster) -> bool:
    """Whether the cluster has Suwi's own APIs. Raises OSError."""
    await cluster.refresh([])
    for node in islice(cycle(list(cluster.brokers)), _BROKERS_ASKED):
        try:
            await describe_partition_history(cluster, node)
        except ConnectionLost:
            continue  # Another one's, or it is just being stopped.
        except BrokerError:
            pass  # It knows the API, and does not allow it.
        return True
    return False


# -- writing -------------------------------------------------------------------------------------


async def publish_status(cluster: Cluster, clock: Clock, status: PipelineStatus) -> None:
    """Raises BrokerError and OSError."""
    try:
        await cluster.topic(STATUS_TOPIC)
    except UnknownTopicOrPartition:
        try:
            await Admin(cluster).create_topic(STATUS_TOPIC, partitions=1, configs=_CONFIGS)
        except TopicAlreadyExists:
            pass
    async with Producer(cluster, clock, _STATUS_PRODUCER) as producer:
        value = {"version": _VERSION, **status._asdict()}
        value["queries"] = [query._asdict() for query in status.queries]
        record = json.dumps(value, separators=(",", ":")).encode()
        await (await producer.send(STATUS_TOPIC, record, key=status.pipeline.encode(), partition=0))


# -- reading -------------------------------------------------------------------------------------


async def read_statuses(cluster: Cluster, now_ms: int) -> list[PipelineStatus]:
    """Sorted by name; none if there is no such topic. Raises BrokerError and OSError."""
    partition = TopicPartition(STATUS_TOPIC, PartitionIndex(0))
    try:
        await cluster.topic(STATUS_TOPIC)  # At once, unlike ListOffsets, if no broker is there.
        starts = await list_offsets(cluster, {partition: EARLIEST})
        ends = await list_offsets(cluster, {partition: LATEST})
    except UnknownTopicOrPartition:
        return []
    end = ends[partition].offset
    found: dict[bytes, PipelineStatus | None] = {}
    left_bytes = _READ_BYTES_MAX
    async with Reader(cluster, {partition: starts[partition].offset}) as reader:
        while reader.positions[partition] < end and left_bytes > 0:
            for fetched in await reader.read():
                for record in fetched.records:
                    value = record.value or b""
                    left_bytes -= len(value)
                    found[record.key or b""] = decode_status(value)
    statuses = [status.seen_at(now_ms) for status in found.values() if status is not None]
    return sorted(statuses, key=lambda status: status.pipeline)


def decode_status(value: bytes) -> PipelineStatus | None:
    """None for a deletion, and for what is no status."""
    if not 0 < len(value) <= _VALUE_BYTES_MAX:
        return None
    try:
        fields = json.loads(value)
        queries = tuple(_query(query) for query in fields["queries"])
        return PipelineStatus(
            _text(fields["pipeline"]),
            _text(fields["state"]),
            _text(fields["host"]),
            _integer(fields["started_ms"]),
            _integer(fields["published_ms"]),
            _integer(fields["restarts"]),
            None if fields["error"] is None else _text(fields["error"]),
            None if fields["error_ms"] is None else _integer(fields["error_ms"]),
            queries,
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _query(fields: Mapping[str, Any]) -> QueryStatus:
    return QueryStatus(
        _text(fields["query"]),
        _text(fields["about"]),
        None if fields["group"] is None else _text(fields["group"]),
        _integer(fields["batch"]),
        _integer(fields["batch_ms"]),
        _integer(fields["rows"]),
        float(_number(fields["rows_per_s"])),
        None if fields["lag"] is None else _integer(fields["lag"]),
        None if fields["done_ms"] is None else _integer(fields["done_ms"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value[:_TEXT_MAX]


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 53:
        raise TypeError
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise TypeError
    return value
