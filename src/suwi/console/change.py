"""How a change is asked for: first what it would do, then that it be done.

The function of a change gets what was asked, a named tuple that begins with what it changes, and
returns a `Plan`. A preview sends the plan; otherwise it is applied. What destroys needs the typed
name, and a plan that must be the one that was shown is compared with it.
Invariant: nothing is applied unless the console was started with --allow-changes, and every attempt
to apply is one line in the log, without the contents of records.
"""

import hashlib
import json
import logging
import types
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, NewType

from kio.schema.errors import ErrorCode
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from suwi.admin.failure import Failure
from suwi.admin.json_documents import plain
from suwi.admin.text import time_text
from suwi.client.errors import reason
from suwi.console.clusters import ShownCluster
from suwi.console.page import STATUS
from suwi.model.errors import BrokerError
from suwi.wire.errors import MalformedResponse

audit = logging.getLogger("suwi.console.audit")
"""One JSON line for each change."""
RECORD = "record"
"""The field of a record, whose texts may be long."""
Count = NewType("Count", int)
"""Of partitions or replicas."""
_OFFSET_MAX, _COUNT_MAX, _TEXT_CHARACTERS_MAX = (1 << 62) - 1, (1 << 15) - 1, 32_000
_ROWS_SHOWN_MAX, _NOTES_SHOWN_MAX = 200, 20
_READ_ONLY = "this console only reads; start it with --allow-changes to change something"
_FIELDS = {
    ErrorCode.topic_already_exists: "topic",
    ErrorCode.invalid_topic_exception: "topic",
    ErrorCode.invalid_partitions: "partitions",
    ErrorCode.invalid_replication_factor: "replication_factor",
    ErrorCode.invalid_config: "configs",
    ErrorCode.invalid_replica_assignment: "replicas",
}
"""The field that an error is about."""
_MAY_BE_DONE = (
    ErrorCode.request_timed_out,
    ErrorCode.network_exception,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.coordinator_not_available,  # also if the coordinator's write was not in time
)


class PlanRow(NamedTuple):
    what: str
    before: str
    after: str


class Plan(NamedTuple):
    command: str
    """The same in a terminal."""
    apply: Callable[[], Awaitable[object]]
    done: str
    """What was done then, unless `apply` returns a better text."""
    rows: Sequence[PlanRow] = ()
    notes: Sequence[str] = ()
    confirm: str = ""
    """What must be typed, because the change cannot be undone."""
    is_exact: bool = False
    """Whether it is applied only if its rows are those that were shown."""


PlanChange = Callable[[ShownCluster, Any], Awaitable[Plan]]


class Order(NamedTuple):
    """The body of a request, with the values of a change."""

    values: Mapping[str, Any]
    is_preview: bool
    confirm: str = ""
    seen: str = ""
    """Of the preview."""


class Preview(NamedTuple):
    command: str
    rows: Sequence[PlanRow]
    """The first of `rows_count`."""
    rows_count: int
    notes: Sequence[str]
    confirm: str
    seen: str


class Done(NamedTuple):
    text: str


class Refusal(NamedTuple):
    """Why a change was not made."""

    kind: str
    """`forbidden`, `unreachable`, `missing`, `bad`, or `refused` by the cluster."""
    text: str
    field: str
    """Which value it is about; empty: none of them."""


class BadValue(Exception):
    """A value that makes no sense; the text says why."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@contextmanager
def about(field: str) -> Iterator[None]:
    """A `Failure` in it is one of this value."""
    try:
        yield
    except Failure as failure:
        raise BadValue(field, str(failure)) from None


async def all_done(results: Awaitable[Mapping[Any, str | None]]) -> None:
    """Raises `Failure` if one was refused."""
    refused = [f"{each}: {why}" for each, why in (await results).items() if why is not None]
    if refused:
        raise Failure("; ".join(refused))


@dataclass(frozen=True)
class Changes:
    """The addresses of all changes."""

    find_cluster: Callable[[Request], ShownCluster]
    plans: Mapping[str, PlanChange]
    are_allowed: Callable[[ShownCluster], bool]
    if_not: str = _READ_ONLY

    async def answer(self, request: Request) -> Any:
        name = request.path_params["change"]
        try:
            shown = self.find_cluster(request)
            if not self.are_allowed(shown):
                return _json(Refusal("forbidden", self.if_not, ""), 403)
            if name not in self.plans:
                return _json(Refusal("missing", f"there is no change {name!r}", ""), 404)
            order = parsed(Order, _document(await request.body()))
            asked = parsed(asked_type(self.plans[name]), order.values)
        except (BadValue, Failure) as error:
            return _json(*_refused(error))
        except ClientDisconnect:
            return _json(Refusal("bad", "the request has ended early", ""), 400)
        planning = self.plans[name](shown, asked)
        if order.is_preview:
            return await _preview(planning)
        return await _apply(planning, order, _entry(request, shown, name, asked))


def asked_type(plan_change: PlanChange) -> Any:
    """The type of the values of a change."""
    return typing.get_type_hints(plan_change)["asked"]


async def _preview(planning: Awaitable[Plan]) -> Any:
    try:
        plan = await planning
    except Exception as error:
        return _json(*_refused(error))
    rows, notes = plan.rows[:_ROWS_SHOWN_MAX], plan.notes[:_NOTES_SHOWN_MAX]
    if len(plan.notes) > len(notes):
        notes = [*notes, f"and {len(plan.notes) - len(notes)} more"]
    count = len(plan.rows)
    return _json(Preview(plan.command, rows, count, notes, plan.confirm, _seen(plan)))


async def _apply(planning: Awaitable[Plan], order: Order, entry: Mapping[str, Any]) -> Any:
    outcome, text = "interrupted", ""
    try:
        plan = await planning
        if order.confirm != plan.confirm:
            raise BadValue("confirm", f"type {plan.confirm!r} to confirm it")
        if order.seen != _seen(plan):
            raise Failure("what would be done is no longer what was shown: look at it again")
        outcome = "unknown"  # until the cluster has answered
        result = await plan.apply()
        outcome, text = "done", result if isinstance(result, str) else plan.done
        return _json(Done(text))
    except Exception as error:
        refusal, status = _refused(error)
        text = refusal.text
        if outcome == "unknown" and _may_be_done(error):
            text += "; it may have been done all the same"
        else:
            outcome = "failed"
        return _json(refusal._replace(text=text), status)
    finally:
        audit.info(json.dumps({**entry, "outcome": outcome, "text": text}))


def _may_be_done(error: Exception) -> bool:
    """Whether it was applied all the same: nobody knows, or the broker gave up waiting."""
    told = error.__cause__ if isinstance(error, Failure) else error
    return (
        isinstance(told, OSError | MalformedResponse) or getattr(told, "code", None) in _MAY_BE_DONE
    )


def _seen(plan: Plan) -> str:
    rows = json.dumps(plan.rows).encode()
    return hashlib.sha256(rows).hexdigest() if plan.is_exact else ""


def _entry(request: Request, shown: ShownCluster, name: str, asked: Any) -> dict[str, Any]:
    on, *others = asked._asdict().items()
    return {
        "at": time_text(shown.clock.now_ms()),
        "who": getattr(request.scope.get("session"), "user", None) or "token",
        "from": "" if request.client is None else f"{request.client.host}:{request.client.port}",
        "cluster": shown.name,
        "change": name,
        "on": on[1],
        # The keys of a configuration, and nothing of a record.
        "values": {
            key: sorted(value) if isinstance(value, dict) else value
            for key, value in others
            if key != RECORD
        },
    }


def _refused(error: Exception) -> tuple[Refusal, int]:
    """Raises the error if it is a bug."""
    field = ""
    match error:
        case BadValue():
            kind, text, field = "bad", str(error), error.field
        case Failure():
            kind, text = "refused", str(error)
        case BrokerError():
            is_forbidden = error.code.name.endswith("authorization_failed")
            kind, field = "forbidden" if is_forbidden else "refused", _FIELDS.get(error.code, "")
            text = error.message or error.code.name.replace("_", " ")
        case OSError() | MalformedResponse():
            kind, text = "unreachable", reason(error)
        case _:
            raise error
    return Refusal(kind, text, field), STATUS.get(kind, 409)


def _json(value: Any, status: int = 200) -> JSONResponse:
    return JSONResponse(plain(value), status)


# -- bodies ----------------------------------------------------------------------------------------


def _document(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise BadValue("", "the request is not JSON") from None


def parsed(hint: Any, value: Any, field: str = "") -> Any:
    """A JSON value as the type of a field; a named tuple from an object. Raises `BadValue`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or (value is None and type(None) in arguments):
        return value
    if origin in (types.UnionType, typing.Union):
        return parsed(arguments[0], value, field)
    if origin is Sequence and isinstance(value, list):
        return [parsed(arguments[0], each, field) for each in value]
    if origin is Mapping and isinstance(value, dict):
        return {key: parsed(arguments[1], each, field) for key, each in value.items()}
    if hasattr(hint, "_fields") and isinstance(value, dict):
        hints, required = typing.get_type_hints(hint), set(hint._fields) - {*hint._field_defaults}
        for name in sorted((value.keys() - hints) | (required - value.keys())):
            raise BadValue(field or name, f"{name[:40]!r} is missing, or is not known")
        return hint(**{key: parsed(hints[key], each, field or key) for key, each in value.items()})
    if hint in (int, Count) and type(value) is int:
        if 0 <= value <= (_OFFSET_MAX if hint is int else _COUNT_MAX):
            return value
    elif hint is str and type(value) is str:
        is_text = not any("\ud800" <= character <= "\udfff" for character in value)
        if is_text and (len(value) <= _TEXT_CHARACTERS_MAX or field == RECORD):
            return value
    elif hint is bool and type(value) is bool:
        return value
    raise BadValue(field, "it is missing, or is not what is expected here")
