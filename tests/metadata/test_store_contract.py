"""The contract of store.py for entries, changes and registrations, tested with every store
(hazard Z3)."""

import asyncio
import random

import pytest

from suwi.metadata.store import (
    ABSENT,
    HISTORY_CHANGES,
    WRITE_BYTES_MAX,
    AlreadyRegistered,
    Applied,
    Change,
    Check,
    Conflict,
    Delete,
    Entry,
    Gap,
    MetadataStore,
    Put,
    SessionLost,
    SessionState,
    allocate,
)
from suwi.model.ids import NodeId
from tests.metadata.conftest import Run
from tests.metadata.worlds import World, until

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


class TestEntries:
    def test_what_was_written_is_read_with_its_sequence_as_version(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store = await world.connect()
            assert await store.read("topics/a") is None
            assert await store.write([Put("topics/a", b"1")]) == Applied(1)
            assert await store.read("topics/a") == Entry("topics/a", b"1", 1)
            assert await store.write([Put("topics/a", b"2"), Put("b", b"")]) == Applied(2)
            snapshot = await store.read_all()
            assert snapshot.sequence == 2
            assert snapshot.entries == {
                "topics/a": Entry("topics/a", b"2", 2),
                "b": Entry("b", b"", 2),
            }
            assert (await store.read_all("topics/")).entries.keys() == {"topics/a"}

        run(scenario)

    def test_any_printable_key_and_any_bytes_survive(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store = await world.connect()
            keys = ["a%2Fb", "a/b", "topics/ünï čode", "x/..y/.z", "q?#&=+"]
            puts = [Put(key, bytes(range(256)) + key.encode()) for key in keys]
            assert await store.write(puts) == Applied(1)
            entries = (await store.read_all()).entries
            assert {key: entry.value for key, entry in entries.items()} == {
                put.key: put.value for put in puts
            }
            changes = await store.changes_after(0)
            assert changes == [Change(1, {put.key: put.value for put in puts})]

        run(scenario)

    def test_a_write_that_conflicts_changes_nothing(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store = await world.connect()
            assert await store.write([Put("a", b"1", ABSENT)]) == Applied(1)
            for refused in (
                Put("a", b"2", ABSENT),
                Put("a", b"2", 2),
                Delete("a", 2),
                Check("a", ABSENT),
            ):
                assert await store.write([Put("other", b"x"), refused]) == Conflict("a")
            assert await store.write([Put("b", b"", 1)]) == Conflict("b")
            assert await store.write([Delete("b", 1)]) == Conflict("b")
            snapshot = await store.read_all()
            assert snapshot.sequence == 1
            assert snapshot.entries == {"a": Entry("a", b"1", 1)}

        run(scenario)

    def test_a_recreated_entry_has_another_version(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store = await world.connect()
            assert await store.write([Put("a", b"1")]) == Applied(1)
            assert await store.write([Delete("a", 1)]) == Applied(2)
            assert await store.read("a") is None
            assert await store.write([Put("a", b"1", ABSENT)]) == Applied(3)
            assert await store.write([Put("a", b"late", 1)]) == Conflict("a")
            assert await store.write([Delete("a", 1)]) == Conflict("a")
            assert await store.write([Delete("a", 3)]) == Applied(4)

        run(scenario)

    def test_a_write_of_checks_alone_is_not_a_change(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store = await world.connect()
            assert await store.write([Put("a", b"1")]) == Applied(1)
            assert await store.write([Check("a", 1), Check("b", ABSENT)]) == Applied(1)
            assert await store.write([]) == Applied(1)
            assert await store.changes_after(1) == []

        run(scenario)

    def test_deleting_a_missing_entry_is_a_change(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store = await world.connect()
            assert await store.write([Delete("a")]) == Applied(1)
            assert await store.changes_after(0) == [Change(1, {"a": None})]

        run(scenario)

    def test_invalid_writes_raise_value_error(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store = await world.connect()
            for operations in (
                [Put("a", b"1"), Delete("a")],
                [Put("", b"1")],
                [Put("a//b", b"1")],
                [Put("../a", b"1")],
                [Put("a\0", b"1")],
                [Put("a", bytes(WRITE_BYTES_MAX))],
            ):
                with pytest.raises(ValueError, match=r"key|bytes"):
                    await store.write(operations)
            assert (await store.read_all()).sequence == 0

        run(scenario)

    def test_the_largest_write_is_accepted(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store = await world.connect()
            value = random.Random(0).randbytes(WRITE_BYTES_MAX - 65)  # Will not compress.
            assert await store.write([Put("a", value)]) == Applied(1)
            entry = await store.read("a")
            assert entry is not None
            assert entry.value == value

        run(scenario)

    def test_concurrent_writers_lose_no_update(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            stores = [await world.connect() for _ in range(3)]
            await stores[0].write([Put("count", b"0")])

            async def increment(store: MetadataStore) -> None:
                written = 0
                while written < 10:
                    await store.sync()
                    entry = await store.read("count")
                    assert entry is not None
                    put = Put("count", b"%d" % (int(entry.value) + 1), entry.version)
                    written += isinstance(await store.write([put]), Applied)

            await asyncio.gather(*map(increment, stores))
            await stores[0].sync()
            entry = await stores[0].read("count")
            assert entry == Entry("count", b"30", 31)
            changes = await stores[0].changes_after(0)
            assert [change.sequence for change in changes] == list(range(1, 32))
            assert [change.values["count"] for change in changes] == [b"%d" % n for n in range(31)]

        run(scenario)


class TestChanges:
    def test_changes_come_in_sequence_up_to_the_bound_and_then_as_a_gap(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            writer, reader = await world.connect(), await world.connect()
            written = HISTORY_CHANGES + 3
            for number in range(1, written + 1):
                assert await writer.write([Put(f"k{number % 5}", b"%d" % number)]) == Applied(
                    number
                )
            await reader.sync()
            assert await reader.changes_after(written) == []
            assert await reader.changes_after(written + 10) == []
            assert await reader.changes_after(2) == Gap()
            changes = await reader.changes_after(3)
            assert [change.sequence for change in changes] == list(range(4, written + 1))
            assert changes[-1].values == {f"k{written % 5}": b"%d" % written}

        run(scenario)

    def test_a_snapshot_and_the_changes_after_it_add_up_while_others_write(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            writer, reader = await world.connect(), await world.connect()

            async def write() -> None:
                for number in range(1, 61):
                    key = f"k{number % 7}"
                    operation = Delete(key) if number % 3 == 0 else Put(key, b"%d" % number)
                    assert await writer.write([operation]) == Applied(number)

            async def follow() -> None:
                while True:
                    snapshot = await reader.read_all()
                    expected: dict[str, bytes] = {}
                    for number in range(1, snapshot.sequence + 1):
                        if number % 3 == 0:
                            expected.pop(f"k{number % 7}", None)
                        else:
                            expected[f"k{number % 7}"] = b"%d" % number
                    assert {k: e.value for k, e in snapshot.entries.items()} == expected
                    if snapshot.sequence == 60:
                        return
                    await asyncio.sleep(0)

            await asyncio.gather(write(), follow())

        run(scenario)

    def test_a_subscriber_that_reads_after_each_notification_sees_the_last_change(
        self, run: Run
    ) -> None:
        async def scenario(world: World) -> None:
            writer, reader = await world.connect(), await world.connect()
            seen = 0

            async def all_seen() -> bool:
                nonlocal seen
                changes = await reader.changes_after(seen)
                assert isinstance(changes, list)
                for change in changes:
                    assert change.sequence == seen + 1
                    seen += 1
                return seen == 40

            async def write() -> None:
                for number in range(40):
                    await writer.write([Put("a", b"%d" % number)])

            await asyncio.gather(until(reader, all_seen), write())

        run(scenario)

    def test_notifications_are_coalesced_and_end_when_unsubscribed(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            writer, reader = await world.connect(), await world.connect()
            notices = 0

            def count() -> None:
                nonlocal notices
                notices += 1

            reader.subscribe(count)
            await asyncio.gather(*(writer.write([Put(f"k{n}", b"")]) for n in range(30)))

            async def all_there() -> bool:
                return (await reader.read_all()).sequence == 30

            await until(reader, all_there)
            assert notices >= 1
            unsubscribe = reader.subscribe(lambda: pytest.fail("unsubscribed"))
            unsubscribe()
            unsubscribe()
            await writer.write([Put("a", b"")])

        run(scenario)


class TestIds:
    def test_blocks_of_ids_never_overlap(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            stores = [await world.connect() for _ in range(3)]
            firsts = await asyncio.gather(
                *(allocate(store, "producer", 1000) for store in stores for _ in range(4))
            )
            assert sorted(firsts) == list(range(0, 12000, 1000))
            assert await allocate(stores[0], "other", 5) == 0

        run(scenario)


class TestRegistrations:
    def test_a_registration_ends_with_its_session(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store, other = await world.connect(), await world.connect()
            session = await store.open_session()
            epoch = await session.register("brokers/1", b"here")
            await other.sync()
            held = (await other.registrations("brokers/"))["brokers/1"]
            assert (held.value, held.epoch, held.session_id) == (b"here", epoch, session.id)
            assert await other.registrations("x") == {}
            assert (await other.read_all()).entries == {}
            await session.close()
            assert session.state is SessionState.EXPIRED
            assert session.lost.is_set()
            await other.sync()
            assert await other.registrations() == {}
            with pytest.raises(SessionLost):
                await session.register("brokers/1", b"here")

        run(scenario)

    def test_each_registration_has_a_greater_epoch(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            epochs = []
            for number in range(3):
                store = await world.connect()
                session = await store.open_session()
                epochs.append(await session.register("brokers/1", b"%d" % number))
                await store.write([Put("a", b"")])
                epochs.append(await session.register("brokers/2", b""))
                await store.close()
            assert epochs == sorted(set(epochs))
            assert epochs[0] > 0

        run(scenario)

    def test_registering_again_with_the_same_value_is_the_same_registration(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store, other = await world.connect(), await world.connect()
            session, rival = await store.open_session(), await other.open_session()
            epoch = await session.register("brokers/1", b"here")
            assert await session.register("brokers/1", b"here") == epoch
            with pytest.raises(AlreadyRegistered):
                await session.register("brokers/1", b"there")
            with pytest.raises(AlreadyRegistered) as refusal:
                await rival.register("brokers/1", b"here")
            assert refusal.value.registration.epoch == epoch
            assert refusal.value.registration.session_id == session.id

        run(scenario)

    def test_deregistering_removes_exactly_one_epoch(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store, other = await world.connect(), await world.connect()
            session = await store.open_session()
            first = await session.register("brokers/1", b"")
            await other.deregister("brokers/1", first)
            await store.sync()
            assert await store.registrations() == {}
            second = await session.register("brokers/1", b"")
            await other.deregister("brokers/1", first)
            await other.deregister("brokers/2", first)
            await store.sync()
            assert (await store.registrations())["brokers/1"].epoch == second
            assert not session.lost.is_set()

        run(scenario)

    def test_subscribers_are_notified_of_registrations_and_unregistrations(self, run: Run) -> None:
        async def scenario(world: World) -> None:
            store, other = await world.connect(), await world.connect()
            session = await store.open_session()

            async def is_registered() -> bool:
                return "brokers/1" in await other.registrations()

            async def is_unregistered() -> bool:
                return not await is_registered()

            await asyncio.gather(until(other, is_registered), session.register("brokers/1", b""))
            await asyncio.gather(until(other, is_unregistered), session.close())

        run(scenario)
