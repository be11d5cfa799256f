"""A fetch of many partitions yields to the event loop, and misses no change meanwhile."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.env.slices import run_to_end
from suwi.handlers import fetch_job
from suwi.handlers.fetch import LARGE_PARTITIONS, Fetch
from suwi.handlers.fetch_job import SLICE_COST, FetchSource
from suwi.handlers.fetch_session_cache import UPDATED_AT_ONCE, FetchSessionCache, PartitionKey
from suwi.net.answers import Exclusive, Reply
from suwi.replica.partition import Partition
from suwi.sim.random import SimRandom
from suwi.wire.fetch_request import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    encode_fetch_request,
)
from suwi.wire.fetch_response import FetchResponse, decode_fetch_response
from suwi.wire.versions import ApiKey
from tests.handlers.requests import request_of
from tests.handlers.world import EPOCHS, OTHER, World, led, sent

COUNT = 3 * SLICE_COST
VERSION = 15


class Counted:
    """A broker with one topic; records the partitions read in each iteration of the event loop."""

    def __init__(self, count: int = COUNT, *, followed: bool = False) -> None:
        self.world = World()
        self.world.add("t", [led(*([OTHER] if followed else []))] * count)
        self.count = count
        self.looked: Counter[int] = Counter()
        self.by_turn: Counter[int] = Counter()
        self._turn = 0
        handler = Fetch(
            self.world.replicas, FetchSessionCache(10, SimRandom(1)), 1 << 30, self._synced
        )
        self.handler = handler
        source, looked_at = handler._source, self._count_read

        class CountedSource(FetchSource):
            def partition_of(self, key: PartitionKey, *, leader_only: bool) -> Partition:
                looked_at(key[1])
                return source.partition_of(key, leader_only=leader_only)

        handler._source = CountedSource(source.replicas, source.bytes_max, source.synced)
        self._tick()

    def _count_read(self, index: int) -> None:
        self.looked[index] += 1
        self.by_turn[self._turn] += 1

    def _tick(self) -> None:
        self._turn += 1
        self._ticking = asyncio.get_running_loop().call_soon(self._tick)

    async def _synced(self, timeout_s: float) -> None:
        return

    def stop(self) -> None:
        self._ticking.cancel()

    def begin(
        self,
        *,
        offset: int = 0,
        wait_ms: int = 0,
        min_bytes: int = 1,
        session: tuple[int, int] = (0, -1),
        asked: Iterable[int] | None = None,
        replica: bool = False,
        leader_epoch: int = -1,
        last_epoch: int = -1,
    ) -> asyncio.Future[Reply]:
        partitions = [
            FetchPartition(index, leader_epoch, offset, last_epoch, -1, 1 << 20)
            for index in (range(self.count) if asked is None else asked)
        ]
        topics = [FetchTopic(None, self.world.id_of("t"), partitions)] if partitions else []
        request = FetchRequest(
            wait_ms,
            min_bytes,
            1 << 30,
            topics,
            session_id=session[0],
            session_epoch=session[1],
            replica_id=OTHER if replica else -1,
            replica_epoch=EPOCHS[OTHER] if replica else -1,
        )
        body = encode_fetch_request(VERSION, request)
        answer = self.handler(request_of(ApiKey.FETCH, VERSION, body))
        assert isinstance(answer, Exclusive | Reply)
        if isinstance(answer, Exclusive):
            return asyncio.ensure_future(answer.reply)  # type: ignore[arg-type]
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        reply.set_result(answer)  # few partitions
        return reply

    def watchers(self) -> int:
        return sum(
            len(p.replica_log.delayed._at_end) + len(p.replica_log.delayed._at_watermark)
            for p in self.world.replicas
        )

    def settled(self) -> int:
        """Those of partitions that stay watched between the fetches of a session."""
        return sum(len(each.settled) for each in self.handler._sessions._sessions.values())


def response(reply: Reply) -> FetchResponse:
    return decode_fetch_response(VERSION, sent(reply))


def indexes(answer: FetchResponse) -> list[int]:
    return [partition.partition for topic in answer.topics for partition in topic.partitions]


async def until_it_waits(broker: Counted, fetch: asyncio.Future[Reply]) -> None:
    while broker.watchers() < broker.count:  # noqa: ASYNC110 (there is no event to wait for)
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not fetch.done()
    broker.looked.clear()
    broker.by_turn.clear()


def test_many_partitions_are_read_in_slices() -> None:
    async def scenario() -> None:
        broker = Counted()
        for index in range(0, COUNT, 2):
            broker.world.append("t", index, b"x")
        answer = response(await broker.begin())
        broker.stop()
        assert max(broker.by_turn.values()) <= SLICE_COST
        assert len(broker.by_turn) > 2 * COUNT // SLICE_COST  # partitions with records cost more
        assert set(broker.looked.values()) == {1}
        assert indexes(answer) == list(range(COUNT))
        (topic,) = answer.topics
        assert [bool(p.records) for p in topic.partitions] == [True, False] * (COUNT // 2)
        assert not broker.world.files._pins

    asyncio.run(scenario())


@pytest.mark.parametrize("with_session", [False, True])
def test_a_woken_fetch_reads_only_the_changed_partitions(with_session: bool) -> None:
    async def scenario() -> None:
        broker = Counted()
        session = (0, -1)
        asked = None
        if with_session:
            opened = response(await broker.begin(session=(0, 0)))
            session, asked = (opened.session_id, 1), ()
        fetch = broker.begin(wait_ms=60_000, session=session, asked=asked)
        await until_it_waits(broker, fetch)
        broker.world.append("t", 5, b"x")
        broker.world.append("t", 700, b"x")
        answer = response(await fetch)
        broker.stop()
        assert broker.looked == {5: 1, 700: 1}
        assert indexes(answer) == ([5, 700] if with_session else list(range(COUNT)))
        assert broker.watchers() == 0

    asyncio.run(scenario())


def test_a_change_while_other_partitions_are_read_is_not_missed() -> None:
    async def scenario() -> None:
        broker = Counted()
        fetch = broker.begin(wait_ms=60_000)
        await asyncio.sleep(0)
        assert 0 in broker.looked
        assert COUNT - 1 not in broker.looked
        broker.world.append("t", 0, b"x")
        answer = response(await fetch)
        broker.stop()
        assert answer.topics[0].partitions[0].records

    asyncio.run(scenario())


def test_too_little_is_read_again_and_not_pinned_meanwhile() -> None:
    async def scenario() -> None:
        broker = Counted()
        broker.world.append("t", 3, b"x" * 50)
        fetch = broker.begin(wait_ms=60_000, min_bytes=150)
        await until_it_waits(broker, fetch)
        assert not broker.world.files._pins
        broker.world.append("t", 9, b"y" * 50)
        answer = response(await fetch)
        broker.stop()
        found = [p.partition for p in answer.topics[0].partitions if p.records]
        assert found == [3, 9]
        assert broker.looked == {3: 1, 9: 1}

    asyncio.run(scenario())


def test_a_disconnected_client_leaves_neither_watchers_nor_pins() -> None:
    async def scenario() -> None:
        broker = Counted()
        broker.world.append("t", 0, b"x")
        fetch = broker.begin(wait_ms=60_000, min_bytes=1000)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert broker.world.files._pins
        assert broker.watchers()
        fetch.cancel()
        await asyncio.gather(fetch, return_exceptions=True)
        broker.stop()
        assert not broker.world.files._pins
        assert broker.watchers() == 0

    asyncio.run(scenario())


def test_a_partition_whose_file_cannot_be_opened_is_refused_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        broker = Counted()
        for index in (1, 2):
            broker.world.append("t", index, b"x")
        pin, files = broker.world.files.pin, broker.world.files

        def failing(path: str) -> object:
            if path.startswith("/data/t-1/"):
                raise OSError(24, "too many open files")
            return pin(path)

        files.pin = failing  # type: ignore[method-assign, assignment]
        answer = response(await broker.begin())
        broker.stop()
        partitions = answer.topics[0].partitions
        assert partitions[1].error_code == ErrorCode.kafka_storage_error
        assert partitions[2].records
        assert not files._pins

    asyncio.run(scenario())


def test_a_follower_of_a_new_leader_gets_one_response_at_once_and_then_waits() -> None:
    """Its session has what was sent before, so the response is empty, but it is sent at once."""

    async def scenario() -> None:
        broker = Counted(LARGE_PARTITIONS + 1, followed=True)
        opened = response(await broker.begin(session=(0, 0), replica=True))
        state = led(OTHER, epoch=1)
        broker.world.elect("t", 7, state)
        number = opened.session_id
        first = broker.begin(wait_ms=60_000, session=(number, 1), asked=(), replica=True)
        assert indexes(response(await first)) == []
        second = broker.begin(wait_ms=60_000, session=(number, 2), asked=(), replica=True)
        await until_it_waits(broker, second)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        broker.stop()

    asyncio.run(scenario())


def test_progress_that_another_fetch_of_a_follower_set_back_is_recorded_again() -> None:
    """As one of an earlier connection may, which is read late."""

    async def scenario() -> None:
        broker = Counted(LARGE_PARTITIONS + 1, followed=True)
        for index in range(broker.count):
            broker.world.append("t", index, b"x")
        opened = response(await broker.begin(offset=1, session=(0, 0), replica=True))
        number = opened.session_id
        for epoch in (1, 2):
            await broker.begin(session=(number, epoch), asked=(), replica=True)
        (session,) = broker.handler._sessions._sessions.values()
        assert len(session.settled) == broker.count
        leader_state = broker.world.replicas.leader_of("t", 7).leader_state
        assert leader_state is not None
        await broker.begin(offset=0, asked=[7], replica=True)
        assert leader_state.followers[OTHER].end_offset == 0
        await broker.begin(session=(number, 3), asked=(), replica=True)
        assert leader_state.followers[OTHER].end_offset == 1
        broker.stop()

    asyncio.run(scenario())


def test_fetches_of_followers_of_many_partitions_commit_before_the_response() -> None:
    async def scenario() -> None:
        broker = Counted(LARGE_PARTITIONS + 1, followed=True)
        broker.world.append("t", 100, b"x")
        assert response(await broker.begin(offset=0, replica=True)).topics
        partition = broker.world.replicas.leader_of("t", 100)
        assert partition.high_watermark == 0
        await broker.begin(offset=1, replica=True)  # the other partitions are shorter
        assert partition.high_watermark == 1
        broker.stop()

    asyncio.run(scenario())


MANY = 5 * UPDATED_AT_ONCE


async def most_at_once(count: Callable[[], int], done: Callable[[], bool]) -> int:
    """By how much a count changed at most in one iteration of the event loop."""
    most, last = 0, count()
    while not done():
        await asyncio.sleep(0)
        now = count()
        most, last = max(most, abs(now - last)), now
    return most


def test_a_session_of_many_partitions_is_filled_changed_and_removed_in_slices() -> None:
    async def run() -> None:
        world = World()
        sessions = FetchSessionCache(10, SimRandom(1))

        async def synced(timeout_s: float) -> None:
            return

        handler = Fetch(world.replicas, sessions, 1 << 30, synced)
        key = world.id_of("t")

        def unknown() -> list[FetchTopic]:
            partitions = [FetchPartition(index, -1, 0, -1, -1, 1) for index in range(MANY)]
            return [FetchTopic(None, key, partitions)]

        async def fetch(session: tuple[int, int], **fields: Any) -> tuple[FetchResponse, int]:
            asked = FetchRequest(0, 1, 1, session_id=session[0], session_epoch=session[1], **fields)
            request = request_of(ApiKey.FETCH, VERSION, b"", asked)
            held = next(iter(sessions._sessions.values()), None)
            before = sessions._partitions
            answer = handler(request)
            assert sessions._partitions == before, "nothing was done at once"
            assert isinstance(answer, Exclusive)
            reply = asyncio.ensure_future(answer.reply)
            most = await most_at_once(lambda: sessions._partitions, reply.done)
            assert held is None or held in sessions._sessions.values()
            return response(reply.result()), most  # type: ignore[arg-type]

        filled, most = await fetch((0, 0), topics=unknown())
        assert len(indexes(filled)) == sessions._partitions == MANY
        assert most <= UPDATED_AT_ONCE
        again, _ = await fetch((filled.session_id, 1), topics=unknown())
        assert len(indexes(again)) == sessions._partitions == MANY
        (session,) = sessions._sessions.values()
        partitions = session.partitions
        gone = [ForgottenTopic(None, key, range(MANY // 2))]
        _, most = await fetch((filled.session_id, 2), topics=(), forgotten=gone)
        assert (sessions._partitions, most) == (MANY // 2, UPDATED_AT_ONCE)
        sessions.remove(filled.session_id)
        assert partitions, "it is freed in slices"
        assert sessions._partitions == 0

    asyncio.run(run())


def test_a_session_that_others_leave_no_room_for_while_it_is_filled_is_given_up() -> None:
    async def run() -> None:
        sessions = FetchSessionCache(10, SimRandom(1), partitions_max=MANY)

        def asked(count: int) -> FetchRequest:
            partitions = [FetchPartition(index, -1, 0, -1, -1, 1) for index in range(count)]
            return FetchRequest(0, 1, 1, [FetchTopic("t", None, partitions)], session_epoch=0)

        first = sessions.opening(asked(MANY), uses_topic_ids=False, now_s=0.0)
        next(first)
        second, _ = sessions.open(asked(MANY // 2), uses_topic_ids=False, now_s=0.0)
        assert second is not None
        assert run_to_end(first) == (None, True)
        assert sessions._partitions == len(second.partitions) == MANY // 2
        assert len(sessions) == 1

    asyncio.run(run())


def test_a_session_that_was_removed_while_it_is_filled_is_not_counted() -> None:
    sessions = FetchSessionCache(10, SimRandom(1))
    partitions = [FetchPartition(index, -1, 0, -1, -1, 1) for index in range(MANY)]
    request = FetchRequest(0, 1, 1, [FetchTopic("t", None, partitions)], session_epoch=0)
    opening = sessions.opening(request, uses_topic_ids=False, now_s=0.0)
    next(opening)
    (session,) = sessions._sessions.values()
    sessions.remove(session.id)
    assert run_to_end(opening) == (session, True)
    assert (len(session.partitions), sessions._partitions) == (MANY, 0)


def test_a_disconnect_ends_the_watching_of_many_partitions_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_job, "_UNWATCHED_AT_ONCE", 100)

    async def run() -> None:
        broker = Counted()
        fetch = broker.begin(wait_ms=10_000)
        await until_it_waits(broker, fetch)
        fetch.cancel()
        most = await most_at_once(broker.watchers, lambda: not broker.watchers())
        assert most == 100
        broker.stop()

    asyncio.run(run())


def test_a_client_that_fetches_many_partitions_as_a_replica_is_refused_in_slices() -> None:
    """Versions before sessions have an error for each partition only."""

    async def run() -> None:
        world = World()
        handler = Fetch(world.replicas, FetchSessionCache(10, SimRandom(1)), 1, lambda _: None)  # type: ignore[arg-type, return-value]
        partitions = [FetchPartition(index, -1, 0, -1, -1, 1) for index in range(MANY)]
        topics = [FetchTopic("t", None, partitions), FetchTopic("u", None, partitions[:3])]
        asked = FetchRequest(0, 1, 1, topics, replica_id=2)
        request = request_of(ApiKey.FETCH, 6, b"", asked)
        request.client = request.client._replace(is_peer=False)
        answer = handler(request)
        assert isinstance(answer, Exclusive)
        reply = asyncio.ensure_future(answer.reply)
        turns = 0
        while not reply.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= MANY // UPDATED_AT_ONCE
        refused = decode_fetch_response(6, sent(reply.result()))  # type: ignore[arg-type]
        assert [len(topic.partitions) for topic in refused.topics] == [MANY, 3]
        codes = {each.error_code for topic in refused.topics for each in topic.partitions}
        assert codes == {ErrorCode.cluster_authorization_failed}

    asyncio.run(run())


def test_a_large_fetch_that_waits_responds_at_once_when_others_need_its_memory() -> None:
    async def run() -> None:
        broker = Counted()
        partitions = [FetchPartition(index, -1, 0, -1, -1, 1) for index in range(COUNT)]
        topics = [FetchTopic(None, broker.world.id_of("t"), partitions)]
        asked = FetchRequest(300_000, 1, 1, topics)
        answer = broker.handler(request_of(ApiKey.FETCH, VERSION, b"", asked))
        assert isinstance(answer, Exclusive)
        assert answer.give_way is not None
        reply = asyncio.ensure_future(answer.reply)
        await until_it_waits(broker, reply)  # type: ignore[arg-type]
        answer.give_way()
        assert len(indexes(response(await reply))) == COUNT  # type: ignore[arg-type]
        broker.stop()

    asyncio.run(run())
