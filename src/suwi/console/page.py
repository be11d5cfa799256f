"""How a page's function becomes an address: JSON once, or a stream that follows it.

A page reads one cluster and returns a value of named tuples and data classes, from which the types
of the front end are generated (`tools/console_types.py`). With `Accept: text/event-stream` it is
read again every few seconds, and sent whenever it has changed. What cannot be read is a `Problem`.
Of a long list a page has one part: the server sorts, searches and cuts, the browser shows.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from suwi.admin.failure import Failure
from suwi.admin.json_documents import plain
from suwi.client.errors import reason
from suwi.console.clusters import ShownCluster
from suwi.console.sessions import Session
from suwi.env.tasks import cancel_and_wait
from suwi.model.errors import BrokerError, UnknownTopicOrPartition
from suwi.model.ids import PartitionIndex
from suwi.wire.errors import MalformedResponse

T = TypeVar("T")

_PERIOD_S = 5.0
_STREAMS_MAX = 64
_NUMBER_DIGITS_MAX = 18
_ROWS = 50
_ROWS_MAX = 200
STATUS = {"unreachable": 503, "forbidden": 403, "missing": 404, "bad": 400}


class Problem(NamedTuple):
    """Why there is no page."""

    kind: str
    """`unreachable`, `forbidden`, `missing`, `bad` for a request that makes no sense, `unsupported`
    for what this cluster cannot tell."""
    text: str


class BadQuery(Exception):
    """The address has a value that makes no sense; the text says which."""


class Query:
    """The values in the address of a page."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name, default)

    def number(self, name: str, default: int, *, most: int = 1 << 62) -> int:
        text = self._values.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX):
            raise BadQuery(f"{name}={text[:40]!r} is not a number")
        return min(int(text), most)

    def choice(self, name: str, *allowed: str) -> str:
        """The first one is the default."""
        text = self._values.get(name, allowed[0])
        if text not in allowed:
            raise BadQuery(f"{name}={text[:40]!r}: allowed: {', '.join(allowed)}")
        return text

    def partitions(self, name: str) -> dict[PartitionIndex, int]:
        """Offsets of partitions, as `0:17,1:4`."""
        found = {}
        for part in filter(None, self._values.get(name, "").split(",")):
            index, _, offset = part.partition(":")
            if not all(
                p.isascii() and p.isdigit() and len(p) <= _NUMBER_DIGITS_MAX
                for p in (index, offset)
            ):
                raise BadQuery(f"{name}: {part[:40]!r} is not PARTITION:OFFSET")
            found[PartitionIndex(int(index))] = int(offset)
        return found


class Part(NamedTuple):
    """Which part of a list a page shows."""

    total: int
    """How many there are that match the search."""
    first: int
    rows_max: int
    search: str


def cut(
    items: Sequence[T], query: Query, name: Callable[[T], str], prefix: str = ""
) -> tuple[Part, Sequence[T]]:
    """The part that `search`, `first` and `rows` of the address ask for. `prefix`: what the first
    two begin with there, if the page has another list."""
    search = query.text(f"{prefix}search")
    found = [item for item in items if search in name(item)] if search else items
    first = query.number(f"{prefix}first", 0)
    rows_max = query.number("rows", _ROWS, most=_ROWS_MAX)
    return Part(len(found), first, rows_max, search), found[first : first + rows_max]


Read = Callable[[ShownCluster, Query], Awaitable[Any]]
Follow = Callable[[ShownCluster, Query], AsyncGenerator[tuple[str, Any], None]]
"""A stream of its own: the names and values of its events."""


def problem_of(error: Exception) -> Problem:
    """Raises the error if it is a bug."""
    if isinstance(error, BadQuery):
        return Problem("bad", str(error))
    if isinstance(error, UnknownTopicOrPartition | Failure):
        return Problem("missing", str(error))
    if isinstance(error, BrokerError):
        is_forbidden = error.code.name.endswith("authorization_failed")
        text = error.message or error.code.name.replace("_", " ")
        if error.code.name.startswith("invalid_"):
            return Problem("bad", text)
        return Problem("forbidden" if is_forbidden else "unreachable", text)
    if isinstance(error, OSError | MalformedResponse):
        return Problem("unreachable", reason(error))
    raise error


class Pages:
    """The pages of whichever session asks."""

    def endpoint(self, read: Read) -> Callable[[Request], Awaitable[Any]]:
        async def answer(request: Request) -> Any:
            if "text/event-stream" in request.headers.get("accept", ""):
                return await self._stream(request, lambda *asked: _repeat(read, *asked))
            try:
                cluster = self.cluster(request)
                return _json(await read(cluster, Query(request.query_params)))
            except Exception as error:
                problem = problem_of(error)
                return _json(problem, STATUS[problem.kind])

        return answer

    def stream(self, follow: Follow) -> Callable[[Request], Awaitable[Any]]:
        async def answer(request: Request) -> Any:
            return await self._stream(request, follow)

        return answer

    def cluster(self, request: Request) -> ShownCluster:
        """By the connections of whoever asks. Raises `Failure`."""
        name, session = request.path_params["cluster"], cast(Session, request.scope["session"])
        if name not in session.clusters:
            raise Failure(f"this console has no cluster {name!r}")
        return session.clusters[name]

    async def _stream(self, request: Request, follow: Follow) -> Any:
        try:
            cluster = self.cluster(request)
        except Failure as error:
            return _json(problem_of(error), 404)
        session: Session = request.scope["session"]
        if session.streams >= _STREAMS_MAX:
            return _json(Problem("unreachable", "too many pages are open"), 503)

        async def events() -> AsyncIterator[bytes]:
            session.streams += 1
            followed = follow(cluster, Query(request.query_params))
            try:
                while (event := await _next(followed, session.ended)) is not None:
                    yield _event(*event)
            except Exception as error:
                yield _event("problem", problem_of(error))
            finally:
                session.streams -= 1
                await followed.aclose()

        return StreamingResponse(events(), media_type="text/event-stream")


async def _next(
    followed: AsyncGenerator[tuple[str, Any], None], ended: asyncio.Event
) -> tuple[str, Any] | None:
    """None at the end of the stream, and of the session."""
    step = asyncio.ensure_future(anext(followed, None))  # owner: this function
    ending = asyncio.ensure_future(ended.wait())  # owner: this function
    try:
        await asyncio.wait((step, ending), return_when=asyncio.FIRST_COMPLETED)
        return step.result() if step.done() else None
    finally:
        await cancel_and_wait(step)
        await cancel_and_wait(ending)


async def _repeat(
    read: Read, cluster: ShownCluster, query: Query
) -> AsyncGenerator[tuple[str, Any], None]:
    """The page again whenever it has changed; a problem may pass."""
    last = b""
    while True:
        try:
            name, value = "page", await read(cluster, query)
        except BadQuery:
            raise
        except Exception as error:
            name, value = "problem", problem_of(error)
        event = _event(name, value)
        yield ("", None) if event == last else (name, event)  # a comment notices who has gone
        last = event
        await asyncio.sleep(_PERIOD_S)


def _json(value: Any, status: int = 200) -> Any:
    """A page that is no JSON is a response already."""
    return value if isinstance(value, Response) else JSONResponse(plain(value), status)


def _event(name: str, value: Any) -> bytes:
    """Server-sent events are lines; JSON has no line breaks of its own. `value` may be one."""
    if not name:
        return b":\n\n"
    if isinstance(value, bytes):
        return value
    text = json.dumps(plain(value), ensure_ascii=True, separators=(",", ":"))
    return f"event: {name}\ndata: {text}\n\n".encode()
