"""The embedded store across restarts, crashes and failures of the disk."""

import asyncio
import contextlib
import gc
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from suwi.metadata.embedded import EmbeddedStore, EmbeddedView, StoreInUse
from suwi.metadata.store import (
    AlreadyRegistered,
    Applied,
    Closed,
    Delete,
    Entry,
    Gap,
    Put,
    Unavailable,
    Unknown,
    allocate,
)
from suwi.model.ids import NodeId
from tests.damage.small_disk import SmallDisk, small_disk

ONE = NodeId(1)

# Writes for ever and prints what was applied; the test kills it.
_WRITER = """
import asyncio, sys
from suwi.metadata.embedded import EmbeddedStore
from suwi.metadata.store import Applied, Put, allocate

async def main():
    store = await EmbeddedStore.open(sys.argv[1])
    view = store.view()
    session = await view.open_session()
    epoch = await session.register("brokers/1", b"")
    controller = await session.campaign(1)
    print("epochs", epoch, controller.epoch, flush=True)
    while True:
        sequence = (await view.read_all()).sequence + 1
        puts = [Put(f"k{sequence % 7}", b"%d" % sequence), Put("last", b"%d" % sequence)]
        result = await view.write(puts, controller_epoch=controller.epoch)
        assert result == Applied(sequence), result
        print("applied", sequence, flush=True)

asyncio.run(main())
"""


def open_and_kill(path: Path, answers_before_kill: int) -> tuple[int, int, int]:
    """Kill -9 a writing process; returns its broker epoch, controller epoch and last sequence."""
    source = Path(__file__).parents[2] / "src"
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(1 + answers_before_kill)]
    process.kill()
    lines += [line.split() for line in process.stdout.read().splitlines()]
    process.stdout.close()
    process.wait()
    complete = [line for line in lines if len(line) == 2 and line[0] == "applied"]
    return int(lines[0][1]), int(lines[0][2]), int(complete[-1][1])


def test_a_killed_writer_loses_nothing_that_was_applied(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    broker_epochs, controller_epochs, sequences = [], [], [0]

    async def check(applied: int) -> int:
        store = await EmbeddedStore.open(str(path))
        view = store.view()
        snapshot = await view.read_all()
        # The write whose response was lost by the kill may have been applied too.
        assert snapshot.sequence in (applied, applied + 1)
        assert snapshot.entries["last"] == Entry(
            "last", b"%d" % snapshot.sequence, snapshot.sequence
        )
        for key, entry in snapshot.entries.items():
            assert entry.value == b"%d" % entry.version, key
        # The last seven changes wrote all seven keys: nothing in between is missing.
        versions = sorted(e.version for key, e in snapshot.entries.items() if key != "last")
        assert versions == list(range(max(1, snapshot.sequence - 6), snapshot.sequence + 1))
        assert await view.registrations() == {}
        assert await view.current_controller() is None
        await store.close()
        return snapshot.sequence

    for answers_before_kill in (1, 20, 3, 50):
        broker_epoch, controller_epoch, applied = open_and_kill(path, answers_before_kill)
        assert applied > sequences[-1]
        broker_epochs.append(broker_epoch)
        controller_epochs.append(controller_epoch)
        sequences.append(asyncio.run(check(applied)))
    assert broker_epochs == sorted(set(broker_epochs))
    assert controller_epochs == [1, 2, 3, 4]


def test_a_copy_has_all_writes_that_were_applied_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        store = await EmbeddedStore.open(str(tmp_path / "metadata.db"))
        view = store.view()
        session = await view.open_session()
        epoch = await session.register("brokers/1", b"")
        await session.campaign(ONE)
        for number in range(5):
            await view.write([Put("a", b"%d" % number)])
        copying = asyncio.ensure_future(
            store.copy_to(str(tmp_path / "copy.db"), lambda: store.look(lambda e: e.sequence))
        )
        await asyncio.sleep(0)
        later = [asyncio.ensure_future(view.write([Put(f"later/{n}", b"")])) for n in range(3)]
        assert await copying == 5
        await asyncio.gather(*later)
        await store.close()
        copy = await EmbeddedStore.open(str(tmp_path / "copy.db"))
        view = copy.view()
        found = await view.read_all()
        assert found.sequence == 5
        assert {key: entry.value for key, entry in found.entries.items()} == {"a": b"4"}
        assert await view.current_controller() is None
        session = await view.open_session()
        assert await session.register("brokers/1", b"") > epoch
        assert (await session.campaign(ONE)).epoch == 2
        await copy.close()

    asyncio.run(main())


def test_entries_counters_and_ids_survive_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.db")

    async def first() -> int:
        store = await EmbeddedStore.open(path)
        view = store.view()
        session = await view.open_session()
        epoch = await session.register("brokers/1", b"")
        assert (await session.campaign(ONE)).epoch == 1
        assert await view.write([Put("a", b"1"), Put("b", b"2")]) == Applied(1)
        assert await view.write([Delete("b")]) == Applied(2)
        assert await allocate(view, "p", 1000) == 0
        await store.close()
        return epoch

    async def second(old_epoch: int) -> None:
        store = await EmbeddedStore.open(path)
        view = store.view()
        snapshot = await view.read_all()
        assert snapshot.sequence == 3
        assert snapshot.entries["a"] == Entry("a", b"1", 1)
        assert "b" not in snapshot.entries
        assert await view.changes_after(3) == []
        assert await view.changes_after(2) == Gap()
        assert await allocate(view, "p", 1000) == 1000
        session = await view.open_session()
        assert await session.register("brokers/1", b"") > old_epoch
        assert (await session.campaign(ONE)).epoch == 2
        await store.close()

    asyncio.run(second(asyncio.run(first())))


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.db")

    async def scenario() -> None:
        store = await EmbeddedStore.open(path)
        with pytest.raises(StoreInUse):
            await EmbeddedStore.open(path)
        await store.close()
        await (await EmbeddedStore.open(path)).close()

    asyncio.run(scenario())


def test_a_newer_format_is_refused_with_its_name(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.db")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")

    async def scenario() -> None:
        with pytest.raises(ValueError, match="format 99"):
            await EmbeddedStore.open(path)

    asyncio.run(scenario())


def test_a_cancelled_write_is_consistent_in_memory_and_on_disk(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.db")

    async def scenario() -> int:
        store = await EmbeddedStore.open(path)
        view = store.view()
        for number in range(10):
            writing = asyncio.ensure_future(view.write([Put("a", b"%d" % number)]))
            for _ in range(number):
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        result = await view.write([Put("b", b"")])
        assert isinstance(result, Applied)
        await store.close()
        return result.sequence

    async def reopened() -> int:
        store = await EmbeddedStore.open(path)
        sequence = (await store.view().read_all()).sequence
        await store.close()
        return sequence

    assert asyncio.run(scenario()) == asyncio.run(reopened())


class FailingFile:
    """Wraps the store's file and fails its next commit as SQLite would."""

    def __init__(self, file: object, error_code: int) -> None:
        self._file = file
        self._error_code = error_code

    def save(self, events: object, transaction: int) -> None:
        error = sqlite3.OperationalError("made to fail")
        error.sqlite_errorcode = self._error_code
        raise error

    def close(self) -> None:
        self._file.close()  # type: ignore[attr-defined]


def test_a_full_disk_refuses_writes_until_there_is_space(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await EmbeddedStore.open(str(tmp_path / "metadata.db"))
        view = store.view()
        session = await view.open_session()
        whole = store._file
        store._file = FailingFile(whole, sqlite3.SQLITE_FULL)  # type: ignore[assignment]
        with pytest.raises(Unavailable, match="disk full"):
            await view.write([Put("a", b"")])
        assert await view.read("a") is None
        assert not session.lost.is_set()
        store._file = whole
        assert await view.write([Put("a", b"")]) == Applied(1)
        await store.close()

    asyncio.run(scenario())


def test_a_broker_can_register_and_be_elected_on_a_full_disk(tmp_path: Path) -> None:
    async def scenario(disk: SmallDisk) -> None:
        path = str(disk.path / "metadata.db")
        for _ in range(5):
            store = await EmbeddedStore.open(path)
            disk.fill()
            view = store.view()
            session = await view.open_session()
            await session.register("brokers/1", b"{}")
            await session.campaign(ONE)
            assert isinstance(await view.write([Put("a", b"b")]), Applied)
            assert store.full_errors == 0
            await store.close()

    with small_disk(tmp_path / "disk") as disk:
        asyncio.run(scenario(disk))


def test_a_store_on_a_full_disk_takes_writes_again_when_there_is_space(tmp_path: Path) -> None:
    async def scenario(disk: SmallDisk) -> None:
        store = await EmbeddedStore.open(str(disk.path / "metadata.db"))
        disk.fill()
        view = store.view()
        applied = 0
        with contextlib.suppress(Unavailable):
            while await view.write([Put(f"a{applied}", bytes(100_000))]):
                applied += 1
        assert applied > 0
        assert store.full_errors == 1
        disk.free()
        assert isinstance(await view.write([Put("b", b"b")]), Applied)
        assert len((await view.read_all("a")).entries) == applied
        await store.close()

    with small_disk(tmp_path / "disk") as disk:
        asyncio.run(scenario(disk))


def test_a_failed_write_of_a_cancelled_caller_raises_no_warning(tmp_path: Path) -> None:
    complaints = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
        store = await EmbeddedStore.open(str(tmp_path / "metadata.db"))
        view = store.view()
        whole = store._file
        store._file = FailingFile(whole, sqlite3.SQLITE_FULL)  # type: ignore[assignment]
        writing = asyncio.create_task(view.write([Put("a", b"")]))
        while not store._commits:  # noqa: ASYNC110 (there is no event)
            await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        while store._commits:  # noqa: ASYNC110 (there is no event)
            await asyncio.sleep(0.001)
        store._file = whole
        await store.close()

    asyncio.run(scenario())
    gc.collect()
    assert complaints == []


def test_after_a_failed_sync_the_store_is_unavailable(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await EmbeddedStore.open(str(tmp_path / "metadata.db"))
        view = store.view()
        session = await view.open_session()
        whole = store._file
        store._file = FailingFile(whole, sqlite3.SQLITE_IOERR_FSYNC)  # type: ignore[assignment]
        assert await view.write([Put("a", b"")]) == Unknown()
        assert session.lost.is_set()
        store._file = whole
        with pytest.raises(Unavailable):
            await view.sync()
        with pytest.raises(Unavailable):
            await view.read("a")
        with pytest.raises(Unavailable):
            await view.write([Put("a", b"")])
        await store.close()

    asyncio.run(scenario())


def test_a_failed_store_closes_its_file(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.db")

    async def scenario() -> None:
        store = await EmbeddedStore.open(path)
        whole = store._file
        store._file = FailingFile(whole, sqlite3.SQLITE_IOERR_FSYNC)  # type: ignore[assignment]
        assert await store.view().write([Put("a", b"")]) == Unknown()
        await store.close()
        await store.close()  # Closing it twice is not an error.
        await (await EmbeddedStore.open(path)).close()

    asyncio.run(scenario())


def test_an_unreadable_file_is_closed(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.db")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 1")  # And no tables.

    async def scenario() -> None:
        with pytest.raises(sqlite3.OperationalError) as refused:
            await EmbeddedStore.open(path)
        with contextlib.closing(sqlite3.connect(path, timeout=60)) as db:
            db.execute("PRAGMA user_version = 2")
        assert refused.value is not None  # The traceback refers to the frames that had the file.

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_a_file_is_closed_when_opening_it_is_cancelled(tmp_path: Path, turns: int) -> None:
    path = str(tmp_path / "metadata.db")

    async def scenario() -> None:
        opening = asyncio.create_task(EmbeddedStore.open(path))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        (gone,) = await asyncio.gather(opening, return_exceptions=True)
        if isinstance(gone, EmbeddedStore):
            await gone.close()  # Its thread was faster than these turns of the loop.
        else:
            assert isinstance(gone, asyncio.CancelledError)
        async with asyncio.timeout(120):
            while True:
                try:
                    await (await EmbeddedStore.open(path)).close()
                    break
                except StoreInUse:  # The thread still has it open.
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())


async def until_gone(view: EmbeddedView, key: str) -> None:
    gone = asyncio.Event()
    view.subscribe(gone.set)
    async with asyncio.timeout(120):
        while key in await view.registrations():
            await gone.wait()
            gone.clear()


def test_the_session_of_a_killed_broker_ends_after_the_timeout(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await EmbeddedStore.open(str(tmp_path / "metadata.db"), session_timeout_s=0.5)
        killed, living = store.view(), store.view()
        session = await killed.open_session()
        await session.register("brokers/1", b"")
        killed.kill()
        with pytest.raises(Closed):
            await killed.write([Put("a", b"")])
        assert "brokers/1" in await living.registrations()
        await until_gone(living, "brokers/1")
        assert not session.lost.is_set()  # a killed broker is not notified
        await store.close()

    asyncio.run(scenario())


def test_a_broker_suspended_too_long_notices_the_lost_session_when_it_resumes(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        store = await EmbeddedStore.open(str(tmp_path / "metadata.db"), session_timeout_s=0.02)
        slow, other = store.view(), store.view()
        session = await slow.open_session()
        await session.register("brokers/1", b"")
        slow.suspend()
        await until_gone(other, "brokers/1")
        assert not session.lost.is_set()
        slow.reconnect()
        assert session.lost.is_set()
        await store.close()

    asyncio.run(scenario())


def test_a_broker_suspended_briefly_keeps_its_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await EmbeddedStore.open(str(tmp_path / "metadata.db"), session_timeout_s=60)
        view = store.view()
        session = await view.open_session()
        await session.register("brokers/1", b"")
        view.suspend()
        view.reconnect()
        assert not session.lost.is_set()
        assert "brokers/1" in await view.registrations()
        await store.close()

    asyncio.run(scenario())


def test_a_refused_write_is_not_logged_as_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        store = await EmbeddedStore.open(str(tmp_path / "metadata.db"))
        first, second = await store.view().open_session(), await store.view().open_session()
        await first.register("brokers/1", b"")
        with pytest.raises(AlreadyRegistered):
            await second.register("brokers/1", b"")
        await store.close()

    asyncio.run(scenario())
    assert caplog.records == []
