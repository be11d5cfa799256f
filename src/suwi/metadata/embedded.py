"""The metadata store of a cluster in one process: one SQLite file.

`EmbeddedStore.open` opens the file, `view` gives each broker its connection. The whole state is
also in memory (`Ledger`), so reads are cheap; a write is decided on the event loop, committed to
the file by the only worker thread, and only then applied to the ledger and confirmed. Sessions end
with the process and are not stored; the counters that must never decrease are. A test can kill or
suspend one of several brokers (`EmbeddedView.kill`, `suspend`): callbacks of a view run in the
context in which the view was created, those of the store in an empty one, so that stopping one
broker does not stop the work of another.
Invariant: everything in the ledger is on disk.

Write-ahead log, synchronous=FULL: a commit is one append and one fsync (a rollback journal needs
two or three and a directory sync), and after a crash SQLite recovers exactly the committed prefix
of the log. Exclusive locking keeps other processes out, and the index of the log in memory.
The space of a whole write-ahead log is reserved, also while nothing is running: a broker has to be
registered before it can serve readers, and that must be possible on a full disk.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor  # noqa: TID251 - see EmbeddedStore.open
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from suwi.env.local_disk import LocalDisk
from suwi.metadata.ledger import Changed, Elected, Event, Ledger, Registered
from suwi.metadata.local import Committed, Decide, LocalView
from suwi.metadata.store import (
    AlreadyRegistered,
    Closed,
    Conflict,
    Entry,
    SessionLost,
    SessionState,
    Unavailable,
    Unknown,
)

log = logging.getLogger(__name__)

_SCHEMA_VERSION = 1
_CREATE = f"""
BEGIN;
CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL)
  WITHOUT ROWID;
CREATE TABLE counters (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  transactions INTEGER NOT NULL,
  sequence INTEGER NOT NULL,
  controller_epoch INTEGER NOT NULL
);
INSERT INTO counters VALUES (1, 0, 0, 0);
PRAGMA user_version = {_SCHEMA_VERSION};
COMMIT;
"""

_RESERVED_BYTES = 1_010 * (4_096 + 24)
"""The frames after which SQLite checkpoints (1,000 pages) and starts over, and one change more."""

T = TypeVar("T")

_EXPECTED_ERRORS = (Unavailable, AlreadyRegistered, SessionLost)
"""What a write may raise; anything else is a bug."""


class StoreInUse(Exception):
    """Another process has the file open."""


class _File:
    """The SQLite side. Every method runs on the store's worker thread."""

    def __init__(self, path: str) -> None:
        with contextlib.suppress(OSError):  # SQLite's own error is clearer.
            # Readable by the owner only; SQLite gives its WAL the same mode.
            LocalDisk().open(path, create=True).close()
        self._wal_path = f"{path}-wal"
        # No timeout: another process holds the lock until it ends.
        self._db = sqlite3.connect(path, timeout=0, isolation_level=None)
        try:
            self._prepare(path)
        except sqlite3.OperationalError as error:
            self._db.close()
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise StoreInUse(path) from None
            raise
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, path: str) -> None:
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("PRAGMA fullfsync=ON")  # macOS: flush the drive's cache too.
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if found == 0:
            self._db.executescript(_CREATE)
        elif found != _SCHEMA_VERSION:
            raise ValueError(f"{path} has format {found}; this version reads {_SCHEMA_VERSION}")
        self._reserve()

    def _reserve(self) -> None:
        """Extend the write-ahead log with zeros, where SQLite's recovery ends."""
        if not hasattr(os, "posix_fallocate"):
            return  # macOS
        with (
            contextlib.suppress(OSError),  # The disk is full already.
            contextlib.closing(LocalDisk().open(self._wal_path, create=True)) as file,
        ):
            os.posix_fallocate(file.fileno(), 0, _RESERVED_BYTES)

    def load(self) -> Ledger:
        transaction, sequence, controller_epoch = self._db.execute(
            "SELECT transactions, sequence, controller_epoch FROM counters"
        ).fetchone()
        entries = {
            key: Entry(key, value, version)
            for key, value, version in self._db.execute("SELECT key, value, version FROM entries")
        }
        return Ledger(transaction, sequence, controller_epoch, entries)

    def save(self, events: tuple[Event, ...], transaction: int) -> None:
        self._db.execute("BEGIN")
        try:
            for event in events:
                self._save(event)
            self._db.execute("UPDATE counters SET transactions = ?", (transaction,))
            self._db.execute("COMMIT")
        except sqlite3.Error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _save(self, event: Event) -> None:
        match event:
            case Changed(change):
                for key, value in change.values.items():
                    if value is None:
                        self._db.execute("DELETE FROM entries WHERE key = ?", (key,))
                    else:
                        self._db.execute(
                            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?)",
                            (key, value, change.sequence),
                        )
                self._db.execute("UPDATE counters SET sequence = ?", (change.sequence,))
            case Elected(controller, _):
                self._db.execute("UPDATE counters SET controller_epoch = ?", (controller.epoch,))

    def copy_to(self, path: str) -> None:
        self._db.execute("VACUUM INTO ?", (path,))

    def close(self) -> None:
        self._db.close()  # It removes the write-ahead log.
        self._reserve()


@dataclass(eq=False)
class EmbeddedStore:
    _file: _File
    _ledger: Ledger
    _executor: ThreadPoolExecutor
    _session_timeout_s: float
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _views: "list[EmbeddedView]" = field(default_factory=list)
    _expiries: dict[int, asyncio.TimerHandle] = field(default_factory=dict)
    _commits: set[asyncio.Task[Any]] = field(default_factory=set)
    _broken: Exception | None = None
    full_errors: int = 0
    _is_closed: bool = False

    @classmethod
    async def open(cls, path: str, *, session_timeout_s: float = 6.0) -> "EmbeddedStore":
        """Open the file, or create it. Raises `StoreInUse` if another process has it open.

        `session_timeout_s`: the time after which the session of a killed or suspended view ends.
        """
        # Not the shared thread pool: there a commit would queue behind long jobs on logs.
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="suwi-metadata")

        opened: list[_File] = []

        def load() -> tuple[_File, Ledger]:
            opened.append(_File(path))
            return opened[0], opened[0].load()

        def close_opened() -> None:
            for file in opened:
                file.close()

        try:
            file, ledger = await asyncio.get_running_loop().run_in_executor(executor, load)
        except BaseException:
            executor.submit(close_opened)  # SQLite: by the thread that opened it.
            executor.shutdown(wait=False)
            raise
        return cls(file, ledger, executor, session_timeout_s)

    def view(self) -> "EmbeddedView":
        """A connection for one broker."""
        view = EmbeddedView(self)
        self._views.append(view)
        return view

    async def close(self) -> None:
        for expiry in self._expiries.values():
            expiry.cancel()
        self._expiries.clear()
        for view in list(self._views):
            await view.close()
        async with self._lock:
            self._broken = Closed("closed")
            if not self._is_closed:
                self._is_closed = True
                await asyncio.get_running_loop().run_in_executor(self._executor, self._file.close)
        # Commits of killed brokers, which did not wait for them.
        await asyncio.gather(*self._commits, return_exceptions=True)
        self._executor.shutdown()  # Its thread has nothing left to do.

    async def copy_to(self, path: str, together_with: Callable[[], T]) -> T:
        """Copy the file to a new one. Calls `together_with` first, when no write is in progress;
        none begins until the copy is complete. Returns its result."""
        async with self._lock:
            self._check_usable()
            result = together_with()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._file.copy_to, path)
            return result

    def look(self, look: Callable[[Ledger], T]) -> T:
        self._check_usable()
        return look(self._ledger)

    async def commit(self, decide: Decide) -> Committed | Conflict | Unknown:
        # A commit that has reached the worker will be on disk, so the ledger must apply it even if
        # the caller is cancelled.
        commit = self._begin_commit(decide)
        await asyncio.wait([commit])
        return commit.result()

    def _begin_commit(self, decide: Decide) -> "asyncio.Task[Committed | Conflict | Unknown]":
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._commit(decide), context=Context())  # owner: _ended
        self._commits.add(task)
        task.add_done_callback(self._ended, context=Context())
        return task

    def _ended(self, commit: asyncio.Task[Any]) -> None:
        self._commits.discard(commit)
        error = None if commit.cancelled() else commit.exception()
        if error is not None and not isinstance(error, _EXPECTED_ERRORS):
            # Logged here because the caller may have been cancelled, and this is a bug.
            log.error("metadata write failed", exc_info=error)

    def let_expire(self, session_id: int) -> None:
        """End a session after the timeout, unless `keep` is called before."""
        if session_id in self._expiries:
            return
        self._expiries[session_id] = asyncio.get_running_loop().call_later(
            self._session_timeout_s, self._expire, session_id, context=Context()
        )

    def keep(self, session_id: int) -> None:
        expiry = self._expiries.pop(session_id, None)
        if expiry is not None:
            expiry.cancel()

    def _expire(self, session_id: int) -> None:
        del self._expiries[session_id]
        if self._broken is None:
            self._begin_commit(lambda ledger: ledger.decide_end(session_id))

    def forget(self, view: "EmbeddedView") -> None:
        if view in self._views:
            self._views.remove(view)

    async def _commit(self, decide: Decide) -> Committed | Conflict | Unknown:
        async with self._lock:
            self._check_usable()
            decision = decide(self._ledger)
            if isinstance(decision, Conflict):
                return decision
            if any(isinstance(event, Changed | Registered | Elected) for event in decision):
                transaction = self._ledger.transaction + 1
                try:
                    await asyncio.get_running_loop().run_in_executor(
                        self._executor, self._file.save, decision, transaction
                    )
                except sqlite3.Error as error:
                    return self._after_failed_save(error)
            self._replay(decision)
            return Committed(decision, self._ledger.sequence)

    def _after_failed_save(self, error: sqlite3.Error) -> Unknown:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            self.full_errors += 1
            raise Unavailable("disk full") from error  # It was rolled back.
        # After a failed fsync the content of the file is unknown until it is opened again.
        self._broken = Unavailable(f"metadata file failed: {error}")
        for view in self._views:
            view.lose_session()
        return Unknown()

    def _replay(self, events: tuple[Event, ...]) -> None:
        if events:
            self._ledger.replay(events)
            for view in self._views:
                view.schedule_notice()

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise self._broken


class EmbeddedView(LocalView):
    def __init__(self, store: EmbeddedStore) -> None:
        super().__init__()
        self._store = store
        self._context = copy_context()
        self._notice: asyncio.Handle | None = None
        self._closed = False

    @property
    def full_errors(self) -> int:
        return self._store.full_errors

    async def _look(self, look: Callable[[Ledger], T]) -> T:
        self._check_open()
        return self._store.look(look)

    async def _commit(self, decide: Decide) -> Committed | Conflict | Unknown:
        self._check_open()
        return await self._store.commit(decide)

    async def sync(self) -> None:
        await self._look(lambda ledger: None)

    async def expire(self) -> None:
        """End the session as if it had timed out."""
        if self._session is not None and not self._session.lost.is_set():
            await self._session.close()
            self.schedule_notice()

    def suspend(self) -> None:
        """Suspend the broker: its session ends after the timeout, without its noticing."""
        if self._session is not None and not self._session.lost.is_set():
            self._store.let_expire(self._session.id)

    def reconnect(self) -> None:
        """Resume the broker. It notices only now if its session has ended."""
        session = self._session
        if session is None or session.lost.is_set():
            return
        self._store.keep(session.id)
        if not self._store.look(lambda ledger: session.id in ledger.sessions):
            session.move_to(SessionState.EXPIRED)
            self.schedule_notice()

    def kill(self) -> None:
        """Simulate the end of the broker's process: the view is closed, its session times out."""
        if not self._closed:
            self.suspend()
            self._detach()

    def lose_session(self) -> None:
        """The store has failed: mark the session as expired."""
        if self._session is not None:
            self._session.move_to(SessionState.EXPIRED)
        self.schedule_notice()

    async def close(self) -> None:
        if not self._closed:
            with contextlib.suppress(Unavailable):
                await self.expire()
            self._detach()

    def _detach(self) -> None:
        self._closed = True
        self._callbacks.clear()
        self._store.forget(self)

    def schedule_notice(self) -> None:
        if self._notice is None:
            loop = asyncio.get_running_loop()
            self._notice = loop.call_soon(self._deliver_notice, context=self._context)

    def _deliver_notice(self) -> None:
        self._notice = None
        self._notify()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("closed")
