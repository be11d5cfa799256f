"""A shard with a tiny machine, on a partition of a simulated disk, under simulated time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar

from suwi.coordinator.event import Call, Event, TimerKey
from suwi.coordinator.record import CoordinatorRecord, RecordFacts
from suwi.coordinator.shard import Shard
from suwi.coordinator.shard_replica import ShardContext, Status
from suwi.metadata.image import PartitionState
from suwi.model.errors import BrokerError
from suwi.model.ids import LeaderEpoch, NodeId, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import batches, read_header
from suwi.records.builder import build_batch
from suwi.records.record import Marker, MarkerType, Record
from suwi.replica.leader_state import UNKNOWN_EPOCH
from suwi.replica.partition import Partition
from suwi.sim import Simulation
from suwi.wire.errors import MalformedMessage
from tests.replica.alone import ONE, TWO, make_partition
from tests.supervision import tasks_that_must_not_fail

ISR_SILENCE_S_MAX = 1.5
COMMIT_TIMEOUT_S = 5.0
UNREADABLE = b"?"
"""The key of a record that cannot be decoded."""
POISON = "poison"
"""The key of a record whose replay raises."""
REPLY = "reply"
"""The key of a timer that appends nothing."""


class Notes:
    """Keeps the newest value by key. What is not persisted: `waiting` and timers."""

    poison: ClassVar[str | None] = POISON

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.staged: dict[int, dict[str, str]] = {}
        """By producer id what its open transaction would put."""
        self.uncommitted: list[int] = []
        self.committed_end = 0
        self.waiting: list[Call[Notes]] = []
        self.expirations: list[TimerKey] = []
        self.elections = self.resignations = 0
        self.slices_of_a_marker: tuple[None, ...] = ()

    # -- decisions -------------------------------------------------------------------------------

    def put(self, note: tuple[str, str], event: Event) -> None:
        event.append(*note)
        event.reply(note[1])

    def get(self, key: str, event: Event) -> None:
        event.reply(self.values.get(key))

    def wait(self, _: None, event: Event) -> None:
        assert event.call is not None
        self.waiting.append(event.call)

    def release(self, event: Event) -> None:
        for call in self.waiting:
            event.reply_to(call, "released")
        self.waiting.clear()

    # -- the runtime's side ----------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, facts: RecordFacts) -> None:
        key, value = record
        if key == self.poison:
            raise ZeroDivisionError
        if not facts.is_committed:
            self.uncommitted.append(facts.offset)
        if facts.is_transactional:
            self.staged.setdefault(facts.producer_id, {})[key] = value
        elif value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def replay_marker(self, marker: Marker, facts: RecordFacts) -> None:
        if not facts.is_committed:
            self.uncommitted.append(facts.offset)
        staged = self.staged.pop(facts.producer_id, {})
        if marker.type is MarkerType.COMMIT:
            self.values |= staged

    def replaying_marker(self, marker: Marker, facts: RecordFacts) -> Iterator[None]:
        yield from self.slices_of_a_marker
        self.replay_marker(marker, facts)

    def committed(self, end_offset: int) -> bool:
        assert end_offset >= self.committed_end
        self.committed_end = end_offset
        self.uncommitted = [offset for offset in self.uncommitted if offset >= end_offset]
        return False

    def elected(self, event: Event) -> None:
        self.elections += 1

    def resigned(self) -> None:
        self.resignations += 1
        self.waiting.clear()

    def only_replies(self, key: TimerKey) -> bool:
        return key == REPLY

    def expired(self, key: TimerKey, event: Event) -> None:
        self.expirations.append(key)
        if key == REPLY:
            self.release(event)
        else:
            event.append(f"expired {key!s}", "yes")


class NotesCodec:
    """Keys and values are texts."""

    def encode(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        key, value = record
        return key.encode(), None if value is None else value.encode()

    def decode_plain(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        if key.startswith(UNREADABLE):
            raise MalformedMessage("as the test wants it")
        return CoordinatorRecord(key.decode(), None if value is None else value.decode())


class Request(Call[Notes]):
    """A call that shows its response or its error as its reply."""

    __slots__ = ()

    @property
    def reply(self) -> Any:
        """A text, or the error; None while it waits."""
        return self.error if self.error is not None else self.response


class LoopClock:
    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)


class World:
    """Broker 1 has the shard; broker 2 has the other replica."""

    def __init__(self) -> None:
        self.partition: Partition = make_partition()
        self.refusal: Any = None
        """Of appends, while a test refuses them."""
        self.failures: list[Exception] = []
        self.notices: list[Any] = []
        self.shard = self.new_shard()

    def new_shard(self) -> Shard[Notes]:
        return Shard(
            self.partition,
            ShardContext(
                Notes,
                NotesCodec(),  # type: ignore[arg-type]
                LoopClock(),  # type: ignore[arg-type]
                tasks_that_must_not_fail(),
                COMMIT_TIMEOUT_S,
                ISR_SILENCE_S_MAX,
                self.notices.append,
                lambda shard, error: self.failures.append(error),
            ),
        )

    @property
    def machine(self) -> Notes:
        return self.shard.machine

    # -- roles -----------------------------------------------------------------------------------

    def lead(self, epoch: int, *, isr: tuple[NodeId, ...] = (ONE, TWO)) -> None:
        self.partition.make_leader(a_state(ONE, epoch, isr), 11)
        self.shard.lead(LeaderEpoch(epoch))

    def follow(self, epoch: int) -> None:
        self.partition.make_follower(a_state(TWO, epoch, (ONE, TWO)))
        self.shard.follow(LeaderEpoch(epoch))

    def shrink(self, epoch: int, *isr: NodeId, version: int = 100) -> None:
        """The in-sync set changes within the epoch of a leader."""
        replicas = (ONE, TWO)
        state = PartitionState(ONE, LeaderEpoch(epoch), version, replicas, isr)
        self.partition.leader_replica.confirm(state)

    def need_replicas(self, count: int) -> None:
        self.partition.configure(TopicConfig(min_insync_replicas=count))

    async def serve(self, epoch: int = 0) -> None:
        """Lead, and begin to serve: all there is, is committed."""
        self.lead(epoch)
        await self.until(lambda: self.partition.replica_log.ready_log is not None)
        self.commit()
        await self.until(lambda: self.shard.status is Status.ACTIVE)

    # -- the log ---------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        return int(self.partition.log.end_offset)

    def commit(self, end: int | None = None) -> None:
        """The other replica has everything below `end`, or all there is."""
        offset = Offset(self.end if end is None else end)
        self.partition.leader_replica.record_progress(TWO, offset, Offset(0), UNKNOWN_EPOCH)

    def append(self, *records: tuple[str, str], key: bytes | None = None) -> None:
        """As the leader, past the shard: what another leader wrote."""
        batch = memoryview(a_batch(*records, key=key))
        self.partition.append(batch, read_header(batch), 0)

    def fetch(self, epoch: int, watermark: int, *records: tuple[str, str]) -> None:
        """As a follower: these records come from the leader, each in a batch of its own."""
        data = b"".join(
            a_batch(record, base_offset=self.end + at, epoch=epoch)
            for at, record in enumerate(records)
        )
        self.partition.follower.append_fetched(
            memoryview(data), LeaderEpoch(epoch), Offset(watermark), Offset(0)
        )

    def batches_in_log(self) -> list[int]:
        """How many records each of them has."""
        found = self.partition.log.read(
            Offset(0), 1 << 30, self.partition.log.end_offset, whole_batch=True
        )
        if found is None:
            return []
        region, release = found.pin()
        data = region.file.pread(region.size_bytes, region.position)
        release()
        return [header.next_offset - header.base_offset for _, header in batches(data)]

    # -- requests --------------------------------------------------------------------------------

    def submit(self, request: Request) -> Request:
        self.shard.submit(request)
        return request

    def put(self, key: str, value: str = "v") -> Request:
        return self.submit(Request(Notes.put, (key, value)))

    async def store(self, key: str) -> None:
        """Put a value, and see it committed and answered."""
        request = self.put(key)
        await turns()
        self.commit()
        assert request.reply == "v"

    def get(self, key: str) -> Request:
        return self.submit(Request(Notes.get, key, writes=False))

    def beat(self) -> Request:
        """What prolongs a session, and may write."""
        return self.submit(Request(Notes.get, "a", prolongs=True))

    async def pass_time(self, seconds: float, *, fetches: bool = True) -> None:
        """The other replica fetches meanwhile."""
        end_s = asyncio.get_running_loop().time() + seconds
        while (left_s := end_s - asyncio.get_running_loop().time()) > 1e-6:
            await asyncio.sleep(min(left_s, ISR_SILENCE_S_MAX / 3))
            if fetches:
                self.commit()

    def wait(self) -> Request:
        return self.submit(Request(Notes.wait, None))

    def arm(self, key: TimerKey, delay_ms: int) -> None:
        self.shard.tell(lambda _, key, event: event.arm(key, event.now_ms + delay_ms), key)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(1_000):
            while not condition():  # noqa: ASYNC110 (nothing tells us)
                await asyncio.sleep(0.01)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def a_state(leader: NodeId, epoch: int, isr: tuple[NodeId, ...]) -> PartitionState:
    return PartitionState(leader, LeaderEpoch(epoch), epoch, (ONE, TWO), isr)


def a_batch(
    *records: tuple[str, str], key: bytes | None = None, base_offset: int = 0, epoch: int = 0
) -> bytearray:
    made = [Record(key=name.encode(), value=value.encode()) for name, value in records]
    if key is not None:
        made.append(Record(key=key, value=b""))
    return build_batch(made, base_offset=base_offset, leader_epoch=epoch)


def in_world(scenario: Callable[[World], Awaitable[None]], seed: int = 0) -> None:
    async def run() -> None:
        await scenario(World())

    Simulation(seed).run(run())


def refusal(world: World) -> type[BrokerError]:
    """Why requests are not served now."""
    try:
        world.shard.check_active()
    except BrokerError as error:
        return type(error)
    raise AssertionError("they are")
