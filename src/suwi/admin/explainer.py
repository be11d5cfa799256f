"""Explains what an offset is or was.

From Fetch, ListOffsets, DescribeProducers and ListTransactions, which all brokers serve, and from
DescribeReplicas and DescribeEvents, which only Suwi's do: without them losses are unknown.
Invariant: an offset costs a bounded number of requests, however large the log is.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.admin.event_text import event_text
from suwi.admin.failure import Failure
from suwi.admin.text import printable, time_text
from suwi.admin.topic_descriptions import existing_topic, visible_configs
from suwi.client.cluster import Cluster, Place
from suwi.client.cluster_status import describe_events
from suwi.client.connection import ConnectionLost
from suwi.client.fetching import ReadSettings, Wanted, fetch_from, refusal
from suwi.client.offsets import EARLIEST, LATEST, list_offsets
from suwi.client.replicas import describe_replicas
from suwi.client.routing import ask_leaders
from suwi.client.transaction_admin import PartitionProducer, list_transactions, producers_of
from suwi.client.versioned_connection import VersionedConnection
from suwi.metadata.cluster_events import RECORDS_LOST, UNCLEAN_ELECTION
from suwi.model.errors import BrokerError, UnsupportedVersion
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.records.batch import BatchHeader, batches
from suwi.records.record import MarkerType, iter_records, read_marker
from suwi.wire.fetch_response import FetchedPartition

_OFFSETS_MAX = 100
_GAP_READS_MAX = 25
_SCANNED_MAX = 32  # fetches of a mebibyte, to find the end of a transaction
_SCAN_BYTES = 1024 * 1024
_ONE_BATCH_BYTES = 64 * 1024  # a leader returns the first batch whole, however large it is


class What(StrEnum):
    RECORD = "record"
    MARKER = "transaction marker"
    COMPACTED = "compacted away"
    BELOW_LOG_START = "below the log start"
    NOT_COMMITTED = "beyond the high watermark"
    NEVER_WRITTEN = "never written"


class Transaction(StrEnum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    UNKNOWN = "ended, its marker was not found"


async def explain_offsets(
    cluster: Cluster, topic: str, index: int, offsets: Sequence[int]
) -> list[dict[str, Any]]:
    """What each offset is or was: fields that `explanation_text` words. Raises `Failure`."""
    if len(offsets) > _OFFSETS_MAX:
        raise Failure(f"give at most {_OFFSETS_MAX} offsets")
    (await existing_topic(cluster, topic)).partition(index)
    explainer = _Explainer(cluster, TopicPartition(topic, PartitionIndex(index)))
    await explainer.load()
    return [await explainer.explain(offset) for offset in dict.fromkeys(offsets)]


async def explain_gap(
    cluster: Cluster, topic: str, index: int, first: int, end: int
) -> tuple[list[tuple[dict[str, Any], int]], int]:
    """What the offsets from `first` to before `end` are, as `explain_offsets` has it: the fields of
    the first and the last offset of each part that is the same; and up to where they are explained.

    For offsets without a record, or with records of transactions only. Raises `Failure`.
    """
    (await existing_topic(cluster, topic)).partition(index)
    explainer = _Explainer(cluster, TopicPartition(topic, PartitionIndex(index)))
    await explainer.load()
    return await explainer.explain_gap(first, end)


class _Explainer:
    """The facts about one partition."""

    def __init__(self, cluster: Cluster, partition: TopicPartition) -> None:
        self._cluster = cluster
        self._partition = partition
        self._start = self._high_watermark = self._stable = Offset(0)
        self._log_end: int | None = None
        """None if the leader does not tell."""
        self._configs: dict[str, str] = {}
        self._events: list[dict[str, Any]] = []
        self._producers: list[PartitionProducer] | None = None
        self._names: dict[int, str | None] = {}
        """Transactional ids by producer id."""

    async def load(self) -> None:
        cluster, partition = self._cluster, self._partition
        self._start = await self._listed(EARLIEST)
        self._stable = await self._listed(LATEST, committed_only=True)
        self._high_watermark = await self._listed(LATEST)
        topic = await cluster.topic(partition.topic)
        (replicas,) = await describe_replicas(cluster, [topic], partition.partition)
        leader = replicas.states.get(replicas.partition.leader)
        self._log_end = None if leader is None else leader["log_end"]
        entries = await visible_configs(cluster, topic.name)
        self._configs = {entry.name: entry.value or "" for entry in entries}
        try:
            recorded = await describe_events(cluster)
        except ConnectionLost:
            return
        except BrokerError as error:
            if error.code is not ErrorCode.cluster_authorization_failed:
                raise
            return  # Losses are told to those who may describe the cluster.
        self._events = [e for e in recorded if e["facts"].get("partition") == str(partition)]

    async def _listed(self, time: int, *, committed_only: bool = False) -> Offset:
        found = await list_offsets(
            self._cluster, {self._partition: time}, committed_only=committed_only
        )
        return found[self._partition].offset

    async def explain(self, offset: int) -> dict[str, Any]:
        fields: dict[str, Any] = {"offset": offset}
        if offset < self._start:
            reason = {"log_start": self._start, "cause": self._deletion()}
            fields |= {"what": What.BELOW_LOG_START, **reason}
        elif offset >= self._high_watermark:
            is_written = self._log_end is not None and offset < self._log_end
            fields["what"] = What.NOT_COMMITTED if is_written else What.NEVER_WRITTEN
            fields["high_watermark"] = self._high_watermark
            fields["log_end"] = self._log_end
        else:
            fields |= await self._read(offset)
        fields["losses"] = [event for event in self._events if _lost(event, offset)]
        return fields

    def _deletion(self) -> str:
        limits = (self._configs.get("retention.ms"), self._configs.get("retention.bytes"))
        if "delete" in self._configs.get("cleanup.policy", "delete") and limits != ("-1", "-1"):
            return "retention or DeleteRecords"
        return "DeleteRecords"

    # -- what is in the log ----------------------------------------------------------------------

    async def _read(self, offset: int) -> dict[str, Any]:
        fetched = await self._fetch(offset, committed_only=False)
        for data, header in _batches(fetched):
            if header.last_offset < offset:
                continue
            if header.base_offset > offset:
                break
            facts = await self._of_batch(header)
            if header.is_control:
                marker = read_marker(data, header)
                type_ = "unknown" if marker is None else marker.type.name.lower()
                return {"what": What.MARKER, "marker": type_, **facts}
            for record in iter_records(data, header):
                if record.offset == offset:
                    found = {"what": What.RECORD, "timestamp": record.timestamp, **facts}
                    if header.is_transactional:
                        found["transaction"] = await self._outcome(offset, header)
                    return found
            break
        policy = self._configs.get("cleanup.policy", "")
        return {"what": What.COMPACTED, "cleanup_policy": policy}

    async def explain_gap(
        self, first: int, end: int
    ) -> tuple[list[tuple[dict[str, Any], int]], int]:
        parts: list[tuple[dict[str, Any], int]] = []
        at = first
        for _ in range(_GAP_READS_MAX):
            if at >= end:
                break
            fields, part_end = await self._explain_part(at)
            at = max(at + 1, min(part_end, end))
            if parts and _is_same(parts[-1][0], fields):
                fields, _ = parts.pop()
            parts.append((fields, at - 1))
        return parts, at

    async def _explain_part(self, offset: int) -> tuple[dict[str, Any], int]:
        """What an offset is, and the end of the offsets of which the same is true."""
        fields = await self.explain(offset)
        if offset < self._start:
            return fields, self._start
        if offset >= self._high_watermark:
            return fields, offset + 1
        for data, header in _batches(await self._fetch(offset, committed_only=False)):
            if header.last_offset < offset:
                continue
            offsets = [r.offset for r in iter_records(data, header) if r.offset >= offset]
            if fields["what"] == What.RECORD:
                return fields, header.next_offset
            if fields["what"] == What.MARKER:
                return fields, offset + 1
            return fields, min(offsets, default=header.next_offset)
        return fields, self._high_watermark

    async def _of_batch(self, header: BatchHeader) -> dict[str, Any]:
        facts: dict[str, Any] = {"leader_epoch": header.partition_leader_epoch}
        if header.producer_id >= 0:
            facts |= {"producer_id": header.producer_id, "producer_epoch": header.producer_epoch}
        if header.is_transactional:
            facts["transactional_id"] = await self._transactional_id(header.producer_id)
        return facts

    async def _transactional_id(self, producer_id: int) -> str | None:
        if producer_id not in self._names:
            found = await list_transactions(self._cluster, producer_ids=[producer_id])
            names = [each.transactional_id for each in found.transactions]
            self._names[producer_id] = names[0] if names else None
        return self._names[producer_id]

    async def _outcome(self, offset: int, header: BatchHeader) -> Transaction:
        producer_id = header.producer_id
        if offset < self._stable:
            fetched = await self._fetch(offset, committed_only=True)
            # Those that end at or after the offset; a producer has one transaction at a time.
            for aborted in fetched.aborted or ():
                if aborted.producer_id == producer_id and aborted.first_offset <= offset:
                    return Transaction.ABORTED
            return Transaction.COMMITTED
        for producer in await self._known_producers():
            is_open = producer.open_from is not None and producer.open_from <= offset
            if is_open and producer.producer.producer_id == producer_id:
                return Transaction.OPEN
        return await self._scan(header)

    async def _known_producers(self) -> list[PartitionProducer]:
        if self._producers is None:
            try:
                found = (await producers_of(self._cluster, [self._partition]))[self._partition]
            except UnsupportedVersion:
                found = []
            self._producers = [] if isinstance(found, BrokerError) else found
        return self._producers

    async def _scan(self, begun: BatchHeader) -> Transaction:
        """Look for the marker behind an open transaction of another producer."""
        position = begun.next_offset
        for _ in range(_SCANNED_MAX):
            if position >= self._high_watermark:
                break
            fetched = await self._fetch(position, committed_only=False, bytes_max=_SCAN_BYTES)
            for data, header in _batches(fetched):
                if header.is_control and header.producer_id == begun.producer_id:
                    marker = read_marker(data, header)
                    if marker is not None:
                        is_commit = marker.type is MarkerType.COMMIT
                        return Transaction.COMMITTED if is_commit else Transaction.ABORTED
                position = max(position, header.next_offset)
        return Transaction.UNKNOWN

    async def _fetch(
        self, offset: int, *, committed_only: bool, bytes_max: int = _ONE_BATCH_BYTES
    ) -> FetchedPartition:
        partition = self._partition
        settings = ReadSettings(
            max_wait_ms=0, committed_only=committed_only, partition_bytes_max=bytes_max
        )

        async def ask(
            _: VersionedConnection, led: dict[TopicPartition, Place]
        ) -> dict[TopicPartition, FetchedPartition | BrokerError]:
            wanted = {partition: Wanted(Offset(offset), led[partition])}
            leader = led[partition].partition.leader
            (answer,) = await fetch_from(self._cluster, leader, wanted, settings)
            return {partition: refusal(answer) if answer.fetched.error_code else answer.fetched}

        fetched = (await ask_leaders(self._cluster, [partition], ask))[partition]
        if isinstance(fetched, BrokerError):
            raise fetched
        return fetched


def _batches(fetched: FetchedPartition) -> list[tuple[memoryview, BatchHeader]]:
    records = fetched.records or b""
    assert isinstance(records, bytes | memoryview)
    view = memoryview(records)
    return [(view[at : at + header.size_bytes], header) for at, header in batches(view)]


def _is_same(fields: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether two offsets have one explanation; each marker has its own."""
    own = ("offset", "timestamp", "leader_epoch")
    return fields["what"] != What.MARKER and all(
        fields.get(key) == others.get(key)
        for key in fields.keys() | others.keys()
        if key not in own
    )


def _lost(event: dict[str, Any], offset: int) -> bool:
    """Whether an event lost a record with this offset, as far as is known."""
    facts = event["facts"]
    if event["kind"] == RECORDS_LOST:
        return any(lost["first"] <= offset < lost["end"] for lost in facts["ranges"])
    if event["kind"] == UNCLEAN_ELECTION and facts["lost_at_least"]:
        first, end = facts["lost_at_least"]
        return bool(first <= offset < end)
    return False


def explanation_text(fields: dict[str, Any]) -> str:
    """An explanation for people."""
    what = fields["what"]
    losses = "".join(
        f"; a record with this offset was lost at {time_text(event['at_ms'])}: "
        + event_text(event["kind"], event["facts"])
        for event in fields["losses"]
    )
    return str(what) + _details(fields) + losses


def _details(fields: dict[str, Any]) -> str:
    match fields["what"]:
        case What.BELOW_LOG_START:
            return f" ({fields['log_start']}): removed by {fields['cause']}"
        case What.NOT_COMMITTED:
            return f" ({fields['high_watermark']}): not on all in-sync replicas yet"
        case What.NEVER_WRITTEN if fields["log_end"] is None:
            return f", or not committed yet: the high watermark is {fields['high_watermark']}"
        case What.NEVER_WRITTEN:
            return f": the log ends at {fields['log_end']}"
        case What.COMPACTED if "compact" not in fields["cleanup_policy"]:
            return f" earlier: the topic's cleanup.policy is {fields['cleanup_policy']} now"
        case What.COMPACTED:
            return ""
    parts = [f"leader epoch {fields['leader_epoch']}"]
    if "producer_id" in fields:
        parts.append(f"producer {fields['producer_id']}, epoch {fields['producer_epoch']}")
    if fields.get("transactional_id") is not None:
        parts.append(f"transactional id {printable(fields['transactional_id'])}")
    kind = ""
    if "marker" in fields:
        kind = f": {fields['marker']}"
    elif "transaction" in fields:
        kind = f" of a transaction: {fields['transaction']}"
    else:
        parts.insert(0, time_text(fields["timestamp"]))
    return f"{kind} ({', '.join(parts)})"
