"""The audit log: who changed what, and what was refused. One JSON object per line.

`audited` wraps the handlers of requests that change something, `AuditLog.refused` is called where a
client has no right to something, `log_in_failed` where it does not prove who it is. What is merely
left out of a response is not noted. Notes are kept in memory for a moment, repeated refusals as one
with a count, and then formatted and written by a thread. The files are rotated: `audit-ID.log` is
the newest, then `audit-ID.log.1` and so on; refusals have others, `audit-ID-refused.log`, and so
have requests of which nothing was done.
Invariants: nothing of a request but names is kept and written, so no secret is; refusals, which
strangers can cause, displace no changes; if the log cannot be written, the broker goes on, reports
it as a problem, and says later how many notes were lost.
"""

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from kio.schema.errors import ErrorCode

from suwi.env import Env, FileRegion
from suwi.env.problems import ProblemKind, Problems
from suwi.env.slices import run_to_end
from suwi.env.tasks import RESTART, Tasks, wait_for_event
from suwi.net.answers import Answer, Exclusive, Later, NoReply, Outcome, Reply
from suwi.net.dispatch import Handler, Request
from suwi.net.listener import FailedLogIn
from suwi.security.acls import Operation, PatternType, Permission, ResourceType, of_number
from suwi.security.principal import Principal
from suwi.wire.codec import reading_response
from suwi.wire.errors import MalformedResponse
from suwi.wire.versions import APIS, ApiKey

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
_FILES_MAX: Final = 10
_PERIOD_S: Final = 1.0
_WAIT_S_MAX: Final = 5.0
_READ_S_MAX: Final = 2.0
"""Less than who asks for the newest lines waits for them."""
_READ_BYTES_MAX: Final = 512 * 1024
"""Of the end of the log, for those who ask for the newest lines."""
NEWEST_MAX: Final = 200
_NOTES_MAX: Final = 10_000
"""Of each kind in one period; more are counted as lost."""
_RESPONSES_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of all notes in one period; the outcomes of more are unknown."""
_NAME_CHARACTERS_MAX: Final = 300
_NAMES_MAX: Final = 100
"""How many of the things that a request changes are named."""
_KEYS_MAX: Final = 20
"""How many keys of one of them."""

_OK: Final = "ok"
_UNKNOWN: Final = "unknown"
_MAY_BE_DONE: Final = (_OK, _UNKNOWN)
_HANGS: Final = "the disk does not answer"

_T = TypeVar("_T")
Line: TypeAlias = dict[str, Any]


class _Sender(NamedTuple):
    principal: Principal
    host: str
    client_id: str | None
    api_key: int

    @classmethod
    def of(cls, request: Request) -> "_Sender":
        client_id = request.client_id and request.client_id[:_NAME_CHARACTERS_MAX]
        return cls(request.client.principal, request.client.host, client_id, request.api_key)

    def fields(self) -> dict[str, Any]:
        return {
            "principal": str(self.principal)[:_NAME_CHARACTERS_MAX],
            "host": self.host,
            "client_id": self.client_id,
            "request": APIS[self.api_key].name,
        }


class _Refusal(NamedTuple):
    sender: _Sender
    operation: Operation
    kind: ResourceType
    name: str
    reason: str

    def fields(self) -> dict[str, Any]:
        return {
            **self.sender.fields(),
            "operation": self.operation.name.lower(),
            "on": [f"{self.kind.name.lower()}:{self.name}"],
            "reason": self.reason,
        }


class _FailedLogIn(FailedLogIn):
    def fields(self) -> dict[str, Any]:
        return {
            "principal": str(self.principal)[:_NAME_CHARACTERS_MAX],
            "host": self.host,
            "client_id": None,
            "request": "log-in",
            "on": [f"listener:{self.listener}"],
            "mechanism": self.mechanism,
            "user": self.user,
            "reason": self.reason,
        }


class _Change(NamedTuple):
    sender: _Sender
    at_ms: int
    on: Sequence[str]
    """The first of what was changed."""
    on_count: int
    outcome: Callable[[], dict[str, int]]
    """How many results of each kind."""

    def fields(self) -> Line:
        return {
            "time_ms": self.at_ms,
            **self.sender.fields(),
            "on": self.on,
            "on_count": self.on_count,
            "outcome": self.outcome(),
        }


_Refusals: TypeAlias = dict[_Refusal | _FailedLogIn, list[int]]
"""When each was first and last, and how often."""


class _Files:
    """The files of one kind of notes."""

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self.path = path
        """Of the newest."""
        self.lost = 0
        """How many notes were not written."""
        self._one_writer = threading.Lock()  # a write that was given up may go on, and others read

    def write(self, lines: Sequence[Line], lost: int) -> None:
        """Raises OSError."""
        lines = sorted(lines, key=_time_ms)
        if lost:
            lines.append({"time_ms": self._env.clock.now_ms(), "lost": lost})
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        with self._one_writer:
            self._append(data)

    def _append(self, data: bytes) -> None:
        disk = self._env.disk
        disk.make_dirs(self.path.rpartition("/")[0])
        if disk.exists(self.path) and disk.size(self.path) + len(data) > FILE_BYTES_MAX:
            self._rotate()
        file = disk.open(self.path, create=True)
        try:
            start = file.size()
            if start and file.pread(1, start - 1) != b"\n":
                data = b"\n" + data  # A power failure has cut off the last line.
            if file.pwrite(data, start) < len(data):
                file.truncate(start)
                raise OSError("the disk is full")
        finally:
            file.close()

    def newest(self, lines_max: int) -> list[Line]:
        """The last lines that were written, the newest first. Raises OSError."""
        disk, data = self._env.disk, b""
        with self._one_writer:
            for path in (self.path, f"{self.path}.1"):
                if disk.exists(path) and data.count(b"\n") <= lines_max:
                    file = disk.open(path)
                    try:
                        size_bytes = min(file.size(), _READ_BYTES_MAX - len(data))
                        data = file.pread(size_bytes, file.size() - size_bytes) + data
                    finally:
                        file.close()
        notes = []
        for line in reversed(data.splitlines()):
            # What was cut off is no JSON: the first line, and one that a power failure cut off.
            with contextlib.suppress(ValueError):
                notes.append(json.loads(line))
            if len(notes) == lines_max:
                break
        return notes

    def _rotate(self) -> None:
        disk = self._env.disk
        names = [self.path, *(f"{self.path}.{number}" for number in range(1, _FILES_MAX))]
        if disk.exists(names[-1]):
            disk.remove(names[-1])
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if disk.exists(newer):
                disk.rename(newer, older)


class AuditLog:
    def __init__(self, env: Env, path: str, problems: Problems) -> None:
        """`path`: without the end `.log`."""
        self._env = env
        self._problems = problems
        self.path = f"{path}.log"
        """Of the newest file of changes."""
        self._change_files = _Files(env, self.path)
        self._refusal_files = _Files(env, f"{path}-refused.log")
        self._refusals: _Refusals = {}
        self._changes: list[_Change] = []
        self._responses_bytes = 0
        """Of the changes that are kept."""
        self._writing: asyncio.Task[None] | None = None
        self._is_stopping = asyncio.Event()
        self._reading: asyncio.Future[list[Line]] | None = None

    # -- notes -----------------------------------------------------------------------------------

    def refused(
        self, request: Request, operation: Operation, kind: ResourceType, name: str, reason: str
    ) -> None:
        """`reason`: the rule that denies it, or that none allows it."""
        named = name[:_NAME_CHARACTERS_MAX], reason[:_NAME_CHARACTERS_MAX]
        self._refused(_Refusal(_Sender.of(request), operation, kind, *named))

    def log_in_failed(self, failed: FailedLogIn) -> None:
        user, reason = failed.user[:_NAME_CHARACTERS_MAX], failed.reason[:_NAME_CHARACTERS_MAX]
        self._refused(_FailedLogIn(*failed[:3], user, reason, failed.principal))

    def _refused(self, note: _Refusal | _FailedLogIn) -> None:
        now_ms = self._env.clock.now_ms()
        known = self._refusals.get(note)
        if known is not None:
            known[1:] = now_ms, known[2] + 1
        elif len(self._refusals) < _NOTES_MAX:
            self._refusals[note] = [now_ms, now_ms, 1]
        else:
            self._refusal_files.lost += 1

    def changed(self, request: Request, outcome: Outcome) -> None:
        """`NoReply`: nobody knows what became of it."""
        if isinstance(outcome, Exception) or getattr(request.message, "validate_only", False):
            return
        chunks = outcome.chunks if isinstance(outcome, Reply) else ()
        body = b"".join(chunk for chunk in chunks if not isinstance(chunk, FileRegion))
        self._responses_bytes += len(body)
        if self._responses_bytes > _RESPONSES_BYTES_MAX:
            self._responses_bytes -= len(body)
            body = b""
        named = names_of(request.api_key, request.message)
        results = partial(_results, request.api_key, request.version, body)
        self._changed(_Change(_Sender.of(request), self._env.clock.now_ms(), *named, results))

    def topic_created(self, request: Request, name: str, principal: Principal) -> None:
        """Automatically, on behalf of a request."""
        sender = _Sender.of(request)._replace(api_key=ApiKey.CREATE_TOPICS, principal=principal)
        now_ms = self._env.clock.now_ms()
        self._changed(_Change(sender, now_ms, [f"topic:{name}"], 1, lambda: {_OK: 1}))

    def _changed(self, note: _Change) -> None:
        if len(self._changes) < _NOTES_MAX:
            self._changes.append(note)
        else:
            self._change_files.lost += 1

    # -- reading ---------------------------------------------------------------------------------

    async def newest(self, lines_max: int) -> list[Line]:
        """The last lines of both kinds that were written, the newest first, `NEWEST_MAX` at most.
        Raises OSError."""
        # One thread for all who ask: if the disk hangs, they would take those of everybody else.
        if self._reading is None or self._reading.done():
            loop = asyncio.get_running_loop()
            self._reading = loop.run_in_executor(None, self._read_newest)
        try:
            async with asyncio.timeout(_READ_S_MAX):
                return (await asyncio.shield(self._reading))[:lines_max]
        except TimeoutError:
            raise OSError(_HANGS) from None

    def _read_newest(self) -> list[Line]:
        kinds = self._change_files, self._refusal_files
        lines = [line for files in kinds for line in files.newest(NEWEST_MAX)]
        return sorted(lines, key=_time_ms, reverse=True)[:NEWEST_MAX]

    # -- writing ---------------------------------------------------------------------------------

    async def start(self, tasks: Tasks) -> None:
        """Also tries whether the files can be written."""
        await self._in_time(self._write(self._change_files, ()))
        await self._in_time(self._write(self._refusal_files, ()))
        self._is_stopping = asyncio.Event()
        self._writing = tasks.start(self._run, name="audit log", on_failure=RESTART)

    async def stop(self) -> None:
        """Write what is left."""
        if self._writing is not None:
            self._is_stopping.set()
            await self._in_time(self._writing)
            self._writing = None

    async def _in_time(self, work: Awaitable[None]) -> None:
        """Neither the start nor the stop of the broker waits for a disk that hangs."""
        try:
            async with asyncio.timeout(_WAIT_S_MAX):
                await work
        except TimeoutError:
            kind, path = ProblemKind.AUDIT_LOG_FAILED, self._change_files.path
            self._problems.report(kind, path, _HANGS)

    async def _run(self) -> None:
        """Up to `stop`; a write is not interrupted."""
        is_last = False
        while not is_last:
            is_last = await wait_for_event(self._is_stopping, _PERIOD_S)
            await self.flush()

    async def flush(self) -> None:
        """Write what was noted."""
        changes, self._changes, self._responses_bytes = self._changes, [], 0
        refusals, self._refusals = self._refusals, {}
        done, refused = list[Line](), list[Line]()
        if changes or refusals:
            try:
                done, refused = await _in_thread(_lines, changes, refusals)
            except Exception:
                self._change_files.lost += len(changes)
                self._refusal_files.lost += len(refusals)
                raise
        if done or self._change_files.lost:
            await self._write(self._change_files, done)
        if refused or self._refusal_files.lost:
            await self._write(self._refusal_files, refused)

    async def _write(self, files: _Files, lines: Sequence[Line]) -> None:
        lost, files.lost = files.lost, 0
        try:
            await _in_thread(files.write, lines, lost)
        except Exception as error:
            files.lost += lost + len(lines)
            self._problems.report(ProblemKind.AUDIT_LOG_FAILED, files.path, str(error))
            if not isinstance(error, OSError):
                raise
        else:
            self._problems.resolve(ProblemKind.AUDIT_LOG_FAILED, files.path)


def _time_ms(line: Mapping[str, Any]) -> int:
    return int(line["time_ms"])


async def _in_thread(work: Callable[..., _T], *arguments: Any) -> _T:
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


def _lines(changes: Sequence[_Change], refusals: _Refusals) -> tuple[list[Line], list[Line]]:
    """What was changed, and what was refused or not done for another reason."""
    done, not_done = list[Line](), list[Line]()
    for change in changes:
        line = change.fields()
        (not_done if line["outcome"].keys().isdisjoint(_MAY_BE_DONE) else done).append(line)
    return done, not_done + [_refusal_fields(note, *times) for note, times in refusals.items()]


def _refusal_fields(note: _Refusal | _FailedLogIn, first_ms: int, last_ms: int, count: int) -> Line:
    return {
        "time_ms": first_ms,
        **note.fields(),
        "outcome": {"refused": count},
        "last_ms": last_ms,
    }


def _results(api_key: int, version: int, body: bytes) -> dict[str, int]:
    """How many results of each kind a response has."""
    if not body:
        return {_UNKNOWN: 1}
    counts: Counter[ErrorCode] = Counter()
    with contextlib.suppress(MalformedResponse):
        # In one piece it would keep the event loop from running, although this is a thread.
        counts.update(_codes(run_to_end(reading_response(api_key, version, body))))
    return {_OK if code is ErrorCode.none else code.name: n for code, n in counts.items()}


def _codes(entity: Any) -> Iterator[ErrorCode]:
    """Of an entity of kio, and of those in its arrays."""
    kind: Any = type(entity)
    for name in _field_names(kind):
        value = getattr(entity, name)
        if name == "error_code":
            yield value
        elif isinstance(value, tuple):
            for item in value:
                yield from _codes(item)


@cache
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    """None of what is not an entity, as the items of some arrays."""
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else ()


# -- what changes something -----------------------------------------------------------------------


def names_of(api_key: int, message: Any) -> tuple[list[str], int]:
    """The first of what a request changes, and how many there are. Its values are not kept: they
    may be secret, and large."""
    items, name = CHANGES[api_key]
    found = items(message)
    return [name(item)[:_NAME_CHARACTERS_MAX] for item in found[:_NAMES_MAX]], len(found)


def _topic(topic: Any) -> str:
    return f"topic:{topic.name}"


def _deleted_topics(message: Any) -> Sequence[Any]:
    """By name, or from v6 by name or id."""
    return getattr(message, "topic_names", ()) or getattr(message, "topics", ())


def _deleted_topic(topic: Any) -> str:
    return f"topic:{topic if isinstance(topic, str) else topic.name or topic.topic_id}"


def _resource(resource: Any) -> str:
    keys = ",".join(sorted(config.name for config in islice(resource.configs, _KEYS_MAX)))
    return f"config:{resource.resource_type}:{resource.resource_name}:{keys}"


def _new_rule(rule: Any) -> str:
    pattern = getattr(rule, "resource_pattern_type", None)
    names = rule.host, rule.principal, rule.resource_name
    return "rule:" + _rule(rule, rule.resource_type, pattern, *names)


def _deleted_rule(asked: Any) -> str:
    pattern = getattr(asked, "pattern_type_filter", None)
    names = asked.host_filter, asked.principal_filter, asked.resource_name_filter
    return "rules:" + _rule(asked, asked.resource_type_filter, pattern, *names)


def _rule(rule: Any, kind: int, pattern: int | None, *names: str | None) -> str:
    """For example `deny read from * for User:bob on prefixed topic:orders`."""
    words = (
        of_number(Permission, rule.permission_type),
        of_number(Operation, rule.operation),
        PatternType.LITERAL if pattern is None else of_number(PatternType, pattern),
        of_number(ResourceType, kind),
    )
    permission, operation, pattern_type, resource = (word.name.lower() for word in words)
    host, principal, name = (each or "any" for each in names)
    return (
        f"{permission} {operation} from {host} for {principal} on {pattern_type} {resource}:{name}"
    )


def _quota(entry: Any) -> str:
    entity = " ".join(f"{each.entity_type}:{each.entity_name or '*'}" for each in entry.entity)
    changes = islice(entry.ops, _KEYS_MAX)
    keys = sorted(("-" if change.remove else "") + change.key for change in changes)
    return f"quota:{','.join(keys)} of {entity}"


def _ended_transaction(marker: Any) -> str:
    partitions = (f"{each.name}-{i}" for each in marker.topics for i in each.partition_indexes)
    return f"transaction:{marker.producer_id} in {','.join(islice(partitions, _KEYS_MAX))}"


_Items: TypeAlias = Callable[[Any], Sequence[Any]]
CHANGES: Final[Mapping[int, tuple[_Items, Callable[[Any], str]]]] = {
    ApiKey.CREATE_TOPICS: (attrgetter("topics"), _topic),
    ApiKey.DELETE_TOPICS: (_deleted_topics, _deleted_topic),
    ApiKey.CREATE_PARTITIONS: (attrgetter("topics"), _topic),
    ApiKey.ALTER_CONFIGS: (attrgetter("resources"), _resource),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (attrgetter("resources"), _resource),
    ApiKey.CREATE_ACLS: (attrgetter("creations"), _new_rule),
    ApiKey.DELETE_ACLS: (attrgetter("filters"), _deleted_rule),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        lambda message: (*message.deletions, *message.upsertions),
        lambda change: f"user:{change.name}",
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (attrgetter("entries"), _quota),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (attrgetter("topics"), _topic),
    ApiKey.ELECT_LEADERS: (
        lambda message: message.topic_partitions or (),
        lambda each: f"topic:{each.topic}",
    ),
    ApiKey.UPDATE_FEATURES: (
        attrgetter("feature_updates"),
        lambda update: f"feature:{update.feature}",
    ),
    ApiKey.UNREGISTER_BROKER: (lambda message: (message.broker_id,), "broker:{}".format),
    ApiKey.DELETE_RECORDS: (attrgetter("topics"), _topic),
    ApiKey.DELETE_GROUPS: (attrgetter("groups_names"), "group:{}".format),
    ApiKey.OFFSET_DELETE: (lambda message: (message.group_id,), "group:{}".format),
    ApiKey.WRITE_TXN_MARKERS: (attrgetter("markers"), _ended_transaction),
}
"""The requests that change something: the items of each that are changed, and how an item is named.
Records and the offsets of members are not among them, nor is what coordinators write."""


def audited(handlers: Mapping[int, Handler], audit: AuditLog) -> dict[int, Handler]:
    """The handlers, those of `CHANGES` with a note of what became of it."""
    return {
        key: _audited(handler, audit) if key in CHANGES else handler
        for key, handler in handlers.items()
    }


def _audited(handler: Handler, audit: AuditLog) -> Handler:
    def handle(request: Request) -> Answer | Coroutine[Any, Any, Reply | NoReply]:
        answer = handler(request)
        if request.api_key == ApiKey.WRITE_TXN_MARKERS and request.client.is_peer:
            return answer
        if isinstance(answer, Reply | NoReply):
            audit.changed(request, answer)
            return answer
        if not isinstance(answer, Later | Exclusive):
            return _noting(answer, request, audit)
        answer.reply = _noting(answer.reply, request, audit)
        return answer

    return handle


async def _noting(
    answer: Awaitable[Reply | NoReply], request: Request, audit: AuditLog
) -> Reply | NoReply:
    reply: Reply | NoReply = NoReply()
    try:
        reply = await answer
    finally:
        # Also if the client has hung up: what has begun may be done all the same.
        audit.changed(request, reply)
    return reply
