"""A follower's fetch waits for logs that the leader is opening, and for nothing longer."""

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.handlers.fetch import LARGE_PARTITIONS
from suwi.handlers.fetch_job import NEWS_DELAY_S
from suwi.log.sliced_work import Steps
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import NO_OFFSET
from suwi.net.answers import Reply
from suwi.replica.leader_state import Follower, Stable
from suwi.replica.log_preparation import Turns
from suwi.replica.replica_log import ReplicaLog
from tests.handlers import world as worlds
from tests.handlers.test_fetch_in_slices import Counted, indexes, response, until_it_waits
from tests.handlers.world import EPOCHS, OTHER, followed, led

FEW_AND_MANY = pytest.mark.parametrize("count", [LARGE_PARTITIONS - 1, LARGE_PARTITIONS + 1])


class Held(Turns):
    """No log becomes ready until `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()

    def take(self) -> bool:
        return False

    async def next(self, number: int) -> None:
        await self.released.wait()


class Opening(Counted):
    """A broker that has been elected for partition 7 again, whose log is not ready yet. A follower
    has a session."""

    def __init__(self, count: int) -> None:
        super().__init__(count, followed=True)
        self.turns = Held()
        self.session = 0

    async def open_session(self) -> None:
        self.session = response(await self.begin(session=(0, 0), replica=True)).session_id
        self.replica_log = self.world.replicas.leader_of("t", 7).replica_log
        self.replica_log.context = self.replica_log.context._replace(turns=self.turns)

    async def elect_again(self) -> None:
        await self.open_session()
        self.world.elect("t", 7, led(OTHER, epoch=1))

    @property
    def follower(self) -> Follower:
        leader_state = self.world.replicas.leader_of("t", 7).leader_state
        assert leader_state is not None
        return leader_state.followers[OTHER]

    async def waiting_fetch(self, **options: Any) -> asyncio.Future[Reply]:
        options = {"wait_ms": 60_000, "session": (self.session, 1), "asked": (), **options}
        fetch = self.begin(replica=True, **options)
        await until_it_waits(self, fetch)
        assert self.follower.end_offset == NO_OFFSET
        return fetch

    async def open_log(self) -> None:
        self.turns.released.set()
        await self.replica_log.wait_for_preparation()


def errors(reply: Reply) -> dict[int, int]:
    partitions = [p for topic in response(reply).topics for p in topic.partitions]
    return {p.partition: p.error_code for p in partitions if p.error_code}


@FEW_AND_MANY
def test_a_followers_fetch_waits_for_a_log_that_is_opened_and_then_records_its_progress(
    count: int,
) -> None:
    """An error at once would make it fetch all partitions again and again until then."""

    async def scenario() -> None:
        broker = Opening(count)
        await broker.elect_again()
        waiting = await broker.waiting_fetch()
        broker.turns.released.set()
        answer = await waiting
        assert broker.follower.end_offset == 0
        assert not errors(answer)
        broker.stop()

    asyncio.run(scenario())


@FEW_AND_MANY
@pytest.mark.parametrize("is_full", [False, True])
def test_a_response_to_a_follower_omits_a_log_that_is_still_not_open(
    count: int, is_full: bool
) -> None:
    """It must not back off: its next fetch waits for the log."""

    async def scenario() -> None:
        broker = Opening(count)
        await broker.elect_again()
        number = broker.session
        session, asked = ((number, 0), None) if is_full else ((number, 1), ())
        fetch = broker.begin(wait_ms=10, session=session, asked=asked, replica=True)
        assert indexes(response(await fetch)) == (
            [index for index in range(count) if index != 7] if is_full else []
        )
        await broker.open_log()
        broker.stop()

    asyncio.run(scenario())


@FEW_AND_MANY
def test_records_of_other_partitions_are_sent_while_a_log_is_opened(count: int) -> None:
    async def scenario() -> None:
        broker = Opening(count)
        await broker.elect_again()
        fetch = await broker.waiting_fetch()
        broker.world.append("t", 5, b"x")
        answer = response(await fetch)
        assert indexes(answer) == [5]
        assert answer.topics[0].partitions[0].records
        await broker.open_log()
        broker.stop()

    asyncio.run(scenario())


@FEW_AND_MANY
@pytest.mark.parametrize("end", ["another leader", "a later epoch", "deleted", "unregistered"])
def test_a_followers_fetch_ends_when_the_log_is_not_awaited_any_more(count: int, end: str) -> None:
    async def scenario() -> None:
        broker = Opening(count)
        await broker.elect_again()
        fetch = await broker.waiting_fetch(session=(broker.session, 1), asked=(7,), leader_epoch=1)
        match end:
            case "another leader":
                broker.world.elect("t", 7, followed(epoch=2))
                expected = ErrorCode.not_leader_or_follower
            case "a later epoch":
                broker.world.elect("t", 7, led(OTHER, epoch=2))
                expected = ErrorCode.fenced_leader_epoch
            case "deleted":
                broker.world.delete("t")
                expected = ErrorCode.unknown_topic_id
            case _:
                broker.world.set_broker_epoch(-1)
                expected = ErrorCode.not_leader_or_follower
        assert errors(await fetch)[7] == expected
        assert broker.watchers() == broker.settled()
        broker.turns.released.set()
        broker.stop()

    asyncio.run(scenario())


@FEW_AND_MANY
def test_a_disconnected_followers_fetch_records_no_progress(count: int) -> None:
    async def scenario() -> None:
        broker = Opening(count)
        await broker.elect_again()
        fetch = await broker.waiting_fetch()
        fetch.cancel()
        await asyncio.gather(fetch, return_exceptions=True)
        await broker.open_log()
        await asyncio.sleep(0)
        assert broker.follower.end_offset == NO_OFFSET
        assert broker.watchers() == broker.settled()
        broker.stop()

    asyncio.run(scenario())


@FEW_AND_MANY
def test_a_follower_that_was_registered_again_meanwhile_makes_no_progress(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hazard 10: it may have lost what it had when it fetched."""

    async def scenario() -> None:
        broker = Opening(count)
        await broker.elect_again()
        fetch = await broker.waiting_fetch()
        monkeypatch.setattr(worlds, "EPOCHS", {**EPOCHS, OTHER: EPOCHS[OTHER] + 1})
        broker.world._follow()
        broker.turns.released.set()
        assert errors(await fetch)[7] == ErrorCode.stale_broker_epoch
        assert broker.follower.end_offset == NO_OFFSET
        broker.stop()

    asyncio.run(scenario())


@FEW_AND_MANY
def test_a_fetch_that_diverges_from_a_log_opened_meanwhile_is_no_progress(count: int) -> None:
    """Hazard 5."""

    async def scenario() -> None:
        broker = Opening(count)
        broker.world.append("t", 7, b"a", b"b")
        broker.world.elect("t", 7, led(OTHER, epoch=2))
        broker.world.append("t", 7, b"c")
        await broker.open_session()
        broker.world.elect("t", 7, led(OTHER, epoch=3))
        fetch = await broker.waiting_fetch(
            session=(broker.session, 1), asked=(7,), offset=3, last_epoch=1
        )
        broker.turns.released.set()
        [found] = [p for p in response(await fetch).topics[0].partitions if p.partition == 7]
        assert found.diverging_epoch == (0, 2)
        assert broker.follower.end_offset == NO_OFFSET
        broker.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_opening", [False, True])
def test_a_follower_hears_of_a_high_watermark_soon_unless_its_leader_opens_logs(
    is_opening: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While thousands are opened, each has one to tell: not each may cause a fetch of all."""

    async def scenario() -> None:
        broker = Opening(LARGE_PARTITIONS + 1)
        await broker.open_session()
        if is_opening:
            broker.world.elect("t", 7, led(OTHER, epoch=1))
        broker.world.elect("t", 8, led(OTHER, epoch=1))  # its high watermark is to be told
        loop, delays = asyncio.get_running_loop(), []
        call_later = loop.call_later

        def noting(delay_s: float, *rest: Any) -> asyncio.TimerHandle:
            delays.append(delay_s)
            return call_later(delay_s, *rest)

        monkeypatch.setattr(loop, "call_later", noting)
        await broker.begin(wait_ms=60_000, session=(broker.session, 1), asked=(), replica=True)
        assert delays[0] == 60
        assert (delays[1] > NEWS_DELAY_S) is is_opening
        broker.turns.released.set()
        broker.stop()

    asyncio.run(scenario())


def test_followers_stay_in_sync_however_long_the_leader_opened_its_log() -> None:
    """They could not fetch before: `replica.lag.time.max.ms` begins when the log is ready."""

    async def scenario() -> None:
        broker = Opening(LARGE_PARTITIONS + 1)
        await broker.elect_again()
        broker.follower.caught_up_s -= 3600.0
        await broker.open_log()
        partition = broker.world.replicas.leader_of("t", 7)
        partition.maybe_shrink_isr()
        assert partition.leader_state is not None
        assert isinstance(partition.leader_state.isr, Stable)
        broker.stop()

    asyncio.run(scenario())


@FEW_AND_MANY
def test_a_followers_fetch_ends_when_a_log_cannot_be_opened(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It backs off: each fetch that waits would try to open the log at once again."""
    attempts = []

    def failing(self: ReplicaLog) -> Steps[None]:
        attempts.append(self.partition)
        yield lambda: None
        raise KafkaStorageError("broken")

    async def scenario() -> None:
        broker = Opening(count)
        await broker.open_session()
        monkeypatch.setattr(ReplicaLog, "_opening_and_writing", failing)
        broker.world.elect("t", 7, led(OTHER, epoch=1))
        fetch = await broker.waiting_fetch()
        broker.turns.released.set()
        assert errors(await fetch) == {7: ErrorCode.not_leader_or_follower}
        assert len(attempts) <= 2
        with pytest.raises(KafkaStorageError):
            await broker.replica_log.wait_for_preparation()
        broker.stop()

    asyncio.run(scenario())
