"""The faults of the memory store, which callers must survive."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from suwi.metadata.memory import MemoryStore, MemoryView, Mishap
from suwi.metadata.store import (
    ABSENT,
    Applied,
    Closed,
    Conflict,
    Entry,
    Put,
    SessionState,
    Unavailable,
    Unknown,
    allocate,
)
from suwi.model.ids import NodeId
from suwi.sim import Simulation
from tests.metadata.worlds import PATIENCE_S, SeededRandom, until

ONE = NodeId(1)
T = TypeVar("T")


class VirtualTime(selectors.DefaultSelector):
    """Advances the time to the next timer instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "deadlock: no timer is scheduled"
        self.now_s += max(timeout, 0.0)
        return []


def play(scenario: Coroutine[Any, Any, T]) -> T:
    """Run in virtual time, so that nothing depends on the speed of the machine."""
    time = VirtualTime()

    def make_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(time)
        loop.time = lambda: time.now_s  # type: ignore[method-assign]
        return loop

    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(scenario)


def make_store(seed: int = 0, session_timeout_s: float = 60.0) -> MemoryStore:
    return MemoryStore(SeededRandom(seed), session_timeout_s=session_timeout_s)


def test_an_unknown_write_may_have_been_applied_or_not() -> None:
    async def scenario() -> None:
        view = make_store().view()
        view.plan(Mishap.UNKNOWN_APPLIED, Mishap.UNKNOWN_DROPPED)
        assert await view.write([Put("a", b"1", ABSENT)]) == Unknown()
        assert await view.read("a") == Entry("a", b"1", 1)
        assert await view.write([Put("b", b"1", ABSENT)]) == Unknown()
        assert await view.read("b") is None
        # Repeated with its expected version, at most one of the two is applied.
        assert await view.write([Put("a", b"1", ABSENT)]) == Conflict("a")
        assert await view.write([Put("b", b"1", ABSENT)]) == Applied(2)

    play(scenario())


@pytest.mark.parametrize("mishap", list(Mishap))
def test_registration_and_election_resolve_an_unknown_outcome(mishap: Mishap) -> None:
    async def scenario() -> None:
        store = make_store()
        view = store.view()
        session = await view.open_session()
        view.plan(mishap)
        epoch = await session.register("brokers/1", b"")
        assert store.ledger.registrations["brokers/1"].epoch == epoch
        view.plan(mishap)
        controller = await session.campaign(ONE)
        assert store.ledger.controller == controller
        assert controller.epoch == 1
        view.plan(mishap)
        await view.deregister("brokers/1", epoch)
        assert store.ledger.registrations == {}
        view.plan(mishap)
        await session.resign()
        assert store.ledger.controller is None

    play(scenario())


@pytest.mark.parametrize("mishap", list(Mishap))
def test_ids_are_allocated_once_even_if_the_outcome_of_the_write_is_unknown(mishap: Mishap) -> None:
    async def scenario() -> None:
        store = make_store()
        view = store.view()
        firsts = []
        for _ in range(3):
            view.plan(mishap)
            firsts.append(await allocate(view, "p", 1000))
        assert len(set(firsts)) == 3
        assert int(store.ledger.entries["ids/p"].value) == firsts[-1] + 1000

    play(scenario())


def test_blocks_never_overlap_among_many_brokers_with_every_fault_at_once() -> None:
    async def scenario(seed: int) -> list[int]:
        store = make_store(seed)
        views = [faulty(store.view()) for _ in range(4)]
        given = await asyncio.gather(*(allocate(view, "p", 10) for view in views for _ in range(8)))
        assert len(set(given)) == len(given)
        assert all(first % 10 == 0 for first in given)
        return given

    for seed in range(10):
        assert play(scenario(seed))


def faulty(view: MemoryView) -> MemoryView:
    view.faults.latency_s = (0.0, 0.001)
    view.faults.notice_delay_s = (0.0, 0.002)
    view.faults.read_lag_max = 5
    view.faults.unknown_applied_chance = 0.2
    view.faults.unknown_dropped_chance = 0.2
    return view


def test_a_lagging_view_reads_stale_state_until_it_syncs_or_is_notified() -> None:
    async def scenario() -> None:
        store = make_store()
        writer, reader = store.view(), store.view()
        reader.faults.notice_delay_s = (60.0, 60.0)
        reader.faults.read_lag_max = 64
        for number in range(20):
            await writer.write([Put("a", b"%d" % number)])
        sequences = [(await reader.read_all()).sequence for _ in range(20)]
        assert sequences[0] < 20
        assert sequences == sorted(sequences)
        await reader.sync()
        assert (await reader.read_all()).sequence == 20

    play(scenario())


def test_a_read_after_a_notification_shows_its_cause_even_on_a_lagging_view() -> None:
    async def scenario() -> None:
        store = make_store()
        writer, reader = store.view(), store.view()
        reader.faults.notice_delay_s = (0.001, 0.002)
        reader.faults.read_lag_max = 64
        seen: list[int] = []

        async def all_there() -> bool:
            seen.append((await reader.read_all()).sequence)
            return seen[-1] == 50

        async def write() -> None:
            for _ in range(50):
                await writer.write([Put("a", b"")])

        await asyncio.gather(until(reader, all_there), write())
        assert len(seen) < 50  # Coalesced.

    play(scenario())


def test_a_new_session_may_read_older_state_than_the_last_one_did() -> None:
    async def scenario() -> None:
        view = make_store().view()
        view.faults.notice_delay_s = (60.0, 60.0)
        view.faults.new_session_lag_max = 20
        view.faults.read_lag_max = 20
        for number in range(30):
            await view.write([Put("a", b"%d" % number)])
        began_at = []
        for _ in range(10):
            await view.open_session()
            began_at.append((await view.read_all()).sequence)
            await view.sync()
            assert (await view.read_all()).sequence == 30
            view.expire()
        assert min(began_at) < 30

    play(scenario())


def test_a_disconnect_loses_the_request_or_the_response() -> None:
    async def scenario() -> None:
        store = make_store()
        view = store.view()
        view.faults.latency_s = (0.01, 0.01)

        async def write_and_cut(key: str, *, after_arrival: bool) -> None:
            writing = asyncio.ensure_future(view.write([Put(key, b"")]))
            await asyncio.sleep(0)
            if after_arrival:
                await until(watcher, lambda: has(key))
            view.disconnect()
            assert await writing == Unknown()
            view.reconnect()

        async def has(key: str) -> bool:
            return key in store.ledger.entries

        watcher = store.view()
        await write_and_cut("lost", after_arrival=False)
        await write_and_cut("kept", after_arrival=True)
        assert list(store.ledger.entries) == ["kept"]

    play(scenario())


def test_a_session_disconnected_past_its_timeout_ends_for_others_first() -> None:
    async def scenario() -> None:
        store = make_store(session_timeout_s=0.01)
        view, other = store.view(), store.view()
        session = await view.open_session()
        await session.register("brokers/1", b"")
        controller = await session.campaign(ONE)
        view.disconnect()

        async def gone() -> bool:
            return await other.registrations() == {}

        await until(other, gone)
        assert session.state is SessionState.DISCONNECTED
        view.reconnect()
        assert session.state is SessionState.EXPIRED
        assert session.lost.is_set()
        late = await view.write([Put("a", b"")], controller_epoch=controller.epoch)
        assert isinstance(late, Conflict)

    play(scenario())


def test_a_session_that_reconnects_within_its_timeout_continues() -> None:
    async def scenario() -> None:
        store = make_store(session_timeout_s=0.05)
        view = store.view()
        session = await view.open_session()
        view.disconnect()
        view.reconnect()
        await asyncio.sleep(0.1)  # The cancelled timeout has passed.
        assert session.state is SessionState.CONNECTED
        assert session.id in store.ledger.sessions

    play(scenario())


def test_a_killed_view_is_closed_and_its_session_times_out() -> None:
    async def scenario() -> None:
        store = make_store(session_timeout_s=0.01)
        view, other = store.view(), store.view()
        session = await view.open_session()
        await session.register("brokers/1", b"")
        view.faults.latency_s = (0.001, 0.001)
        writing = asyncio.ensure_future(view.write([Put("a", b"")]))
        await asyncio.sleep(0)
        view.kill()
        for call in (writing, view.read("a"), session.close(), session.campaign(ONE)):
            with pytest.raises(Closed):
                await call
        view.reconnect()
        with pytest.raises(Unavailable):
            await view.sync()
        assert store.ledger.entries == {}

        async def gone() -> bool:
            return await other.registrations() == {}

        async with asyncio.timeout(PATIENCE_S):
            await until(other, gone)

    play(scenario())


def test_the_same_seed_gives_the_same_history() -> None:
    async def story(seed: int) -> list[object]:
        store = make_store(seed)
        told: list[object] = []

        async def broker(number: int) -> None:
            view = faulty(store.view())
            for step in range(20):
                put = Put(f"k{step % 3}", b"%d" % number)
                told.append((number, step, await view.write([put])))
                told.append((number, (await view.read_all()).sequence))

        await asyncio.gather(*map(broker, range(3)))
        return told

    assert play(story(7)) == play(story(7))
    assert play(story(7)) != play(story(8))


def test_a_notification_is_delivered_after_its_author_was_killed() -> None:
    simulation = Simulation(1)
    one, two = simulation.machine("b1"), simulation.machine("b2")

    async def scenario() -> None:
        store = make_store()
        one.start()
        two.start()
        writer, reader = one.call(store.view), two.call(store.view)
        reader.faults.notice_delay_s = (1.0, 1.0)
        woken = asyncio.Event()
        reader.subscribe(woken.set)
        await one.spawn(writer.write([Put("a", b"1")]))
        one.kill()
        async with asyncio.timeout(PATIENCE_S):
            await woken.wait()

    simulation.run(scenario())


def test_a_process_suspended_past_its_session_notices_when_it_resumes() -> None:
    async def scenario() -> None:
        store = make_store(session_timeout_s=5.0)
        view = store.view()
        session = await view.open_session()
        view.suspend()
        await asyncio.sleep(6)
        assert store.ledger.sessions == {}
        assert session.state is SessionState.CONNECTED, "it has not noticed yet"
        with pytest.raises(Unavailable):
            await view.read("a")
        view.reconnect()
        assert session.lost.is_set()

    play(scenario())


def test_observers_get_the_author_of_each_transaction() -> None:
    async def scenario() -> None:
        store = make_store()
        view = store.view()
        told: list[tuple[MemoryView | None, int]] = []
        store.observers.append(lambda author, events: told.append((author, len(events))))
        session = await view.open_session()
        await view.write([Put("a", b"1")])
        store.end_session(session.id)
        assert told == [(view, 1), (view, 1), (None, 1)]

    play(scenario())
