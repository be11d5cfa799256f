"""Work over many partitions, one slice per iteration of the event loop.

Requests take turns: in each iteration one of them has a slice (`Request.next_slice`). A handler
whose work never awaits is a generator that yields after each slice (`sliced_handler`). It adds the
result of each partition to a `SlicedResponse`, which also encodes slice by slice.
Slices are counted in partitions, not in time, so that simulation runs are deterministic.
Invariant: nothing else runs between two yields; state is checked again after each.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import islice
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast
from uuid import UUID

from suwi.env.slices import Slices, free_in_slices
from suwi.handlers.errors import reply
from suwi.net.answers import Exclusive, Reply
from suwi.net.dispatch import Request
from suwi.wire.codec import encode_items, join_items
from suwi.wire.encoder import EncodedItems

SLICE_PARTITIONS = 128
"""About a millisecond if each partition takes ten microseconds."""

_COUNTED_AT_ONCE = 2_000

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")
_P = ParamSpec("_P")

Sliced: TypeAlias = Slices[Reply]


def begin(work: Reply | Sliced) -> Reply | Sliced:
    """Runs the first slice. The reply, if that completes it; otherwise the work."""
    if isinstance(work, Reply):
        return work
    try:
        next(work)
    except StopIteration as done:
        reply: Reply = done.value
        return reply
    return work


def reply_in_slices(request: Request, work: Sliced) -> Reply | Exclusive:
    """The reply, if one slice completes it; otherwise continue with one slice per iteration."""
    begun = begin(work)
    if isinstance(begun, Reply):
        return begun
    slices = request.connection.slices
    # Brokers do not wait for clients.
    running = slices.run(begun) if request.client.is_peer else slices.build(begun)
    return Exclusive(running, waits_for_slices_only=True)


def sliced_handler(work: Callable[_P, Sliced]) -> Callable[_P, Reply | Exclusive]:
    """The handler of a generator, whose last argument is the request."""

    @wraps(work)
    def handle(*args: _P.args, **named: _P.kwargs) -> Reply | Exclusive:
        return reply_in_slices(cast(Request, args[-1]), work(*args, **named))

    return handle


async def sliced(
    request: Request, items: Iterable[_Item], size: int = SLICE_PARTITIONS
) -> AsyncIterator[_Item]:
    """Each item, for handlers that await; after `size` of them the next slice is waited for."""
    for number, item in enumerate(items, 1):
        yield item
        if number % size == 0:
            await request.next_slice()


async def times_named(request: Request, keys: Iterable[_Key]) -> Counter[_Key]:
    """How often each is named, for handlers that answer each once or refuse what is repeated."""
    counted: Counter[_Key] = Counter()
    for _ in counting(counted, keys):
        await request.next_slice()
    return counted


def counting(counted: Counter[_Key], keys: Iterable[_Key]) -> Slices[None]:
    """Counts in slices: a generator that yields after each."""
    rest = iter(keys)
    while some := list(islice(rest, _COUNTED_AT_ONCE)):
        counted.update(some)
        if len(some) == _COUNTED_AT_ONCE:
            yield


def each_once(keys: Iterable[_Key]) -> Iterator[_Key | None]:
    """None in place of a key that was named before: a few bytes of a request, and kilobytes of a
    response if it was answered again."""
    seen: set[_Key] = set()
    for key in keys:
        yield None if key in seen else key
        seen.add(key)


async def each_named(
    request: Request, items: Sequence[_Item], key: Callable[[_Item], _Key]
) -> AsyncIterator[tuple[_Item, int]]:
    """The first item with each key, and how many have it."""
    times = await times_named(request, map(key, items))
    for item, first in zip(items, each_once(map(key, items)), strict=True):
        if first is not None:
            yield item, times[first]


def list_in_slices(
    request: Request, array: str, items: Iterable[dict[str, Any] | None], fields: Mapping[str, Any]
) -> Sliced:
    """A response with one long array. None stands for an item that is left out.

    State may change after each slice: `items` must not iterate over what changes.
    """
    listed = SlicedItems(request, (array,))
    for number, item in enumerate(items, 1):
        if item is not None:
            listed.add(item)
        if number % SLICE_PARTITIONS == 0:
            listed.encode()
            yield
    return listed.reply(**fields)


class SlicedResponse:
    """Builds a response of the form `{"topics": [{..., "partitions": [...]}]}` item by item.

    A handler that awaits adds topics and partitions with `await put_topic` and `await put`, or all
    at once with `put_by_topic`.
    """

    def __init__(
        self,
        request: Request,
        within: tuple[str, ...] = (),
        *,
        arrays: tuple[str, str] = ("topics", "partitions"),
    ) -> None:
        """`within`: the path to the structure that has the topics, if it is not the response.
        `arrays`: other names, for example groups and their members."""
        self._request = request
        self._outer, self._inner = arrays
        self._topics = SlicedItems(request, (*within, self._outer))
        self._topic: dict[str, Any] | None = None
        self._partitions = SlicedItems(request, (*within, *arrays))
        self._in_slice = 0

    def begin_topic(self, **fields: Any) -> bool:
        """Start a topic; the next partitions belong to it. Returns whether the slice is full."""
        self._end_topic()
        self._topic = fields
        return self.count()

    def add(self, partition: dict[str, Any], cost: int = 1) -> bool:
        """Add a partition. Returns whether the slice is full and the caller should yield.

        `cost`: that of how many usual ones.
        """
        self._partitions.add(partition)
        return self.count(cost)

    async def put_topic(self, **fields: Any) -> None:
        """As `begin_topic`; waits for the next slice if this one is full."""
        if self.begin_topic(**fields):
            await self._request.next_slice()

    async def put(self, partition: dict[str, Any]) -> None:
        """As `add`; waits for the next slice if this one is full."""
        if self.add(partition):
            await self._request.next_slice()

    async def put_by_topic(
        self,
        key: str,
        results: Iterable[tuple[tuple[str | UUID, int], _Item]],
        fields: Callable[[int, _Item], dict[str, Any]],
    ) -> None:
        """What became of partitions, topic by topic, in the order of their first appearance.
        `key`: the field with the topic's name or id."""
        topics: dict[str | UUID, list[tuple[int, _Item]]] = {}
        async for (topic, index), result in sliced(self._request, results):
            topics.setdefault(topic, []).append((index, result))
        for topic, partitions in topics.items():
            await self.put_topic(**{key: topic})
            for index, result in partitions:
                await self.put(fields(index, result))
            free_in_slices(partitions)

    def topics(self) -> list[dict[str, Any]] | EncodedItems:
        """All topics, as the value of their array."""
        self._end_topic()
        return self._topics.take()

    def reply(self, **fields: Any) -> Reply:
        return reply(self._request, {**fields, self._outer: self.topics()})

    def count(self, cost: int = 1) -> bool:
        """Work that adds nothing. Returns whether the slice is full."""
        self._in_slice += cost
        if self._in_slice < SLICE_PARTITIONS:
            return False
        self._in_slice = 0
        self._topics.encode()
        self._partitions.encode()
        return True

    def _end_topic(self) -> None:
        if self._topic is not None:
            self._topics.add({**self._topic, self._inner: self._partitions.take()})
            self._topic = None


class SlicedItems:
    """The items of an array; those of earlier slices are already encoded.

    A handler that awaits adds them with `await put(item)`.
    """

    def __init__(self, request: Request, path: tuple[str, ...]) -> None:
        self._request = request
        self._path = path
        self._plain: list[dict[str, Any]] = []
        self._encoded: list[EncodedItems] = []
        self._in_slice = 0

    async def put(self, item: dict[str, Any], cost: int = 1) -> None:
        """Add an item; if the slice is full, encode it and wait for the next one."""
        self.add(item)
        self._in_slice += cost
        if self._in_slice >= SLICE_PARTITIONS:
            self._in_slice = 0
            self.encode()
            await self._request.next_slice()

    def add(self, item: dict[str, Any]) -> None:
        self._plain.append(item)

    def reply(self, **fields: Any) -> Reply:
        """With these items as the array of the response."""
        return reply(self._request, {**fields, self._path[0]: self.take()})

    def encode(self) -> None:
        if self._plain:
            api_key, version = self._request.api_key, self._request.version
            self._encoded.append(encode_items(api_key, version, self._path, self._plain))
            self._plain = []

    def take(self) -> list[dict[str, Any]] | EncodedItems:
        """Return all items for the encoder, and start the next array."""
        plain: list[dict[str, Any]] | EncodedItems = self._plain
        if self._encoded:
            self.encode()
            plain, self._encoded = join_items(self._encoded), []
        self._plain = []
        return plain
