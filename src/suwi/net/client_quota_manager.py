"""Client quotas at work: what clients use, and how long they are throttled for it (KIP-219).

`ClientQuotaManager.of` gives the quotas of a client. Dispatch counts what a request uses of them,
and `RequestQuota` throttles: the reply is sent at once, with the throttle time; then the connection
is muted. Brokers have no quotas. Most requests stay within theirs and need no `RequestQuota`.
A connection remembers its client's quotas until they change (`of_connection`).
Invariants: what is used counts before the reply is ready, so that nobody avoids it by
closing the connection or by many requests at once; no debt is forgotten before it is made up for.
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count, islice
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from suwi.env import FileRegion
from suwi.env.tasks import loop_s
from suwi.env.token_bucket import TokenBucket
from suwi.model.errors import BrokerError, RequestTimedOut, ThrottlingQuotaExceeded
from suwi.net.answers import Answer, Exclusive, Later, NoReply, Outcome, Reply, as_promise
from suwi.net.connection import ClientBuckets, ClientIdentity, Connection
from suwi.security.client_quotas import (
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    NO_QUOTAS,
    ClientQuotaIndex,
    Entity,
)
from suwi.wire.throttle_time import position, with_throttle_time
from suwi.wire.versions import ApiKey

_BURST_S: Final = 1.0
_MUTATIONS_BURST_S: Final = 11.0
"""As Kafka's: controller.quota.window.num times controller.quota.window.size.seconds."""
_REQUEST_THROTTLE_S_MAX: Final = 1.0
"""As Kafka's: quota.window.size.seconds."""
_THROTTLE_S_MAX: Final = 60.0
"""No client waits longer for what one request has used, and nobody's debt is larger: a stranger may
have used the same client id."""
_REMEMBERED_MAX: Final = 10_000
_LOOKED_AT: Final = 100
_CLIENT_ID_CHARACTERS_MAX: Final = 255
"""Longer ones that begin alike share their quotas: so many are remembered."""
BEFORE_LOG_IN: Final = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.PEER_CHALLENGE,
        ApiKey.PEER_PROOF,
    }
)
"""Requests of clients that may not be known yet; they would all be the user ANONYMOUS."""

PRODUCE: Final = int(ApiKey.PRODUCE)
_READY: Final = (Reply, NoReply)  # not unions, which are built on each call
_LATER: Final = (Later, Exclusive)

_T = TypeVar("_T")


class _Others(NamedTuple):
    """Clients choose their ids. Those for which there is no room share a quota."""

    rate: float
    burst_s: float


class QuotaUsage(NamedTuple):
    """What the clients that share a quota use of it."""

    entity: Entity
    key: str
    limit: float
    used: float
    """Per second, of late."""
    throttle_s: float
    """How long they are throttled from now on."""


class ClientQuotaManager:
    def __init__(self) -> None:
        self.epoch: int | None = None
        """Another one whenever clients may have other quotas; None: no client has one."""
        self._epochs = count()
        self._index = NO_QUOTAS
        self._clients: dict[tuple[str, str | None], ClientBuckets | None] = {}
        self._buckets: dict[Hashable, TokenBucket] = {}
        self._evicted: WeakValueDictionary[Hashable, TokenBucket] = WeakValueDictionary()
        """Those that requests still use."""

    def apply(self, index: ClientQuotaIndex) -> None:
        """The quotas from now on. What clients have used is not forgotten."""
        if index is not self._index:
            self._index = index
            self._clients.clear()
            is_set = not index.keys_in_use.isdisjoint(CLIENT_KEYS)
            self.epoch = next(self._epochs) if is_set else None

    def of(
        self, client: ClientIdentity, client_id: str | None, api_key: int
    ) -> ClientBuckets | None:
        """For a request of this client. None: it has no quotas."""
        if client.is_peer or api_key in BEFORE_LOG_IN:
            return None
        try:
            return self._clients[client.principal.name, client_id]
        except KeyError:
            return self._remember(client.principal.name, client_id or "")

    def of_connection(self, connection: Connection, client_id: str | None) -> ClientBuckets | None:
        """For its requests after the log-in, up to the next epoch."""
        epoch = self.epoch
        quotas = self.of(connection.client, client_id, PRODUCE)
        if client_id is None or len(client_id) <= _CLIENT_ID_CHARACTERS_MAX:
            connection.quotas = quotas, client_id, epoch
        return quotas

    def refuses_connection(self, address: str) -> bool:
        """Count a new connection from an address, and say whether they are too many."""
        rate = self._index.connection_rate(address)
        if rate is None:
            return False
        bucket, now_s = self._bucket(address, rate, _BURST_S), loop_s()
        if bucket.wait_s(now_s) > 0:
            return True
        bucket.record(1, now_s)
        return False

    def usages(self) -> Iterator[QuotaUsage]:
        """Of all that have used something of a quota that applies to them now."""
        now_s = loop_s()
        for name, bucket in list(self._buckets.items()):
            if isinstance(name, _Others):
                continue
            entity: Entity = ((IP, str(name)),)
            key = CONNECTION_CREATION_RATE
            if isinstance(name, tuple):
                key, entity = name
            limit = self._index.shared_limit(key, entity)
            if limit is not None:
                throttle_s = min(bucket.wait_s(now_s), _THROTTLE_S_MAX)
                yield QuotaUsage(entity, key, limit, bucket.used(now_s), throttle_s)

    def _remember(self, user: str, client_id: str) -> ClientBuckets | None:
        name = user, client_id[:_CLIENT_ID_CHARACTERS_MAX]
        if name not in self._clients:
            if len(self._clients) >= _REMEMBERED_MAX:
                self._clients.clear()
            self._clients[name] = self._find(*name)
        return self._clients[name]

    def _find(self, user: str, client_id: str) -> ClientBuckets | None:
        found = []
        for key in CLIENT_KEYS:
            limit = self._index.limit(key, user, client_id)
            burst_s = _MUTATIONS_BURST_S if key == CONTROLLER_MUTATION_RATE else _BURST_S
            found.append(limit and self._bucket((key, limit.shared_by), limit.rate, burst_s))
        return ClientBuckets(*found) if any(found) else None

    def _bucket(self, key: Hashable, rate: float, burst_s: float) -> TokenBucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _REMEMBERED_MAX and not self._make_room():
                key = _Others(rate, burst_s)
            bucket = self._buckets.get(key) or self._evicted.get(key)
            if bucket is None:
                bucket = TokenBucket(rate, burst_s, _THROTTLE_S_MAX)
            self._buckets[key] = bucket
        bucket.rate = rate
        return bucket

    def _make_room(self) -> bool:
        """Forget some that are as new ones. False if none of these is."""
        now_s = loop_s()
        for key in list(islice(self._buckets, _LOOKED_AT)):
            bucket = self._buckets.pop(key)
            if bucket.is_full(now_s):
                self._evicted[key] = bucket
            else:
                self._buckets[key] = bucket  # now behind the others
        if len(self._buckets) >= _REMEMBERED_MAX:
            return False
        self._clients.clear()
        self.epoch = next(self._epochs)
        return True


class RequestQuota:
    """What one request uses of its client's quotas."""

    __slots__ = ("_api", "_connection", "_quotas", "_spent", "throttle_ms")

    def __init__(self, quotas: ClientBuckets, connection: Connection, api: tuple[int, int]) -> None:
        self.throttle_ms = 0
        self._quotas = quotas
        self._connection = connection
        self._api = api
        self._spent = 0.0  # of the quota of request time

    # -- for handlers ----------------------------------------------------------------------------

    def throttles_fetch(self, size_bytes: int) -> bool:
        """Whether a fetch is to be answered without records; otherwise they are counted."""
        fetch = self._quotas.fetch
        if fetch is None:
            return False
        now_s = self._connection.time_s()
        if size_bytes and fetch.left < 0 and (wait_s := fetch.wait_s(now_s)) > 0:
            self._throttle(wait_s)
            return True
        fetch.record(size_bytes, now_s)
        return False

    @contextmanager
    def mutating(self, partitions: int, *, is_strict: bool) -> Iterator[None]:
        """Creates or deletes partitions. They count from the beginning, and not at all if nothing
        is changed. Raises ThrottlingQuotaExceeded if that is not allowed now; a client that does
        not know the error (not strict) is throttled for what it has done."""
        mutation = self._quotas.mutation
        if mutation is None:
            yield
            return
        if is_strict and (wait_s := mutation.wait_s(loop_s())) > 0:
            self._throttle(wait_s)
            raise ThrottlingQuotaExceeded("The throttling quota has been exceeded.")
        counted = mutation.record(max(0, partitions), loop_s())
        try:
            yield
        except RequestTimedOut:
            raise  # It may still be done.
        except BrokerError:
            mutation.record(-counted, loop_s())
            raise
        if not is_strict:
            self._throttle(mutation.wait_s(loop_s()))

    def _throttle(self, wait_s: float) -> None:
        if wait_s > 0:
            wait_ms = math.ceil(min(wait_s, _THROTTLE_S_MAX) * 1000)
            self.throttle_ms = max(self.throttle_ms, wait_ms)

    # -- for dispatch ----------------------------------------------------------------------------

    def settle(
        self, answer: Answer | Coroutine[Any, Any, Reply | NoReply], spent: float, now_s: float
    ) -> Answer:
        """Throttle the client when its request is complete. `spent`: what counted of the quota of
        request time by now; the rest is counted here."""
        self._spent += spent
        if isinstance(answer, _READY):
            return self._finished(answer, now_s)
        if not isinstance(answer, _LATER):
            answer = Exclusive(answer)
        reply = answer.reply
        if inspect.iscoroutine(reply):
            reply = self.timed(reply)
        answer.reply = promise = as_promise(asyncio.get_running_loop(), reply)
        promise.finish_with(self._counted)
        return answer

    async def timed(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a part of the handling that counts."""
        return await _Timed(work, self)

    def add_time(self, spent_s: float, now_s: float) -> None:
        if self._quotas.request is not None:
            self._spent += self._quotas.request.record(spent_s * 100, now_s)

    def _wait_s(self, now_s: float, *, in_time: bool = True) -> float:
        """How long the connection has to wait for what was used by now."""
        produce, request, wait_s = self._quotas.produce, self._quotas.request, 0.0
        if produce is not None and self._api[0] == PRODUCE:
            wait_s = produce.wait_s(now_s)
        if request is not None and in_time:
            wait_s = max(wait_s, min(request.wait_s(now_s), _REQUEST_THROTTLE_S_MAX))
        return wait_s

    def _counted(self, outcome: Outcome) -> Outcome:
        return (
            outcome
            if isinstance(outcome, Exception)
            else self._finished(outcome, self._connection.time_s())
        )

    def _finished(self, reply: Reply | NoReply, now_s: float) -> Reply | NoReply:
        """Mute the connection if too much was used, and tell it in the reply."""
        has_reply = isinstance(reply, Reply)
        if not has_reply and self._quotas.request is not None:
            self._quotas.request.record(-self._spent, now_s)  # As in Kafka, acks=0 takes no time.
        self._throttle(self._wait_s(now_s, in_time=has_reply))
        if self.throttle_ms == 0:
            return reply
        self._connection.mute(self.throttle_ms)
        return stamped(reply, self._api, self.throttle_ms) if isinstance(reply, Reply) else reply


def stamped(reply: Reply, api: tuple[int, int], throttle_ms: int) -> Reply:
    """The reply with the throttle time, if its API and version have a place for it."""
    at = position(*api) if reply.throttle_at is None else reply.throttle_at
    if at is None or throttle_ms == 0:
        return reply
    first, *others = reply.chunks
    assert not isinstance(first, FileRegion), "a response begins in memory"
    return Reply([with_throttle_time(first, at, throttle_ms), *others], reply.release)


class _Timed(Awaitable[_T]):
    """Measures how long a coroutine runs, without the time for which it waits."""

    def __init__(self, work: Coroutine[Any, Any, _T], quota: RequestQuota) -> None:
        self._work = work
        self._quota = quota

    def __await__(self) -> Generator[Any, Any, _T]:
        go_on: Callable[[Any], Any] = self._work.send
        argument: Any = None
        while True:
            began_s = loop_s()
            try:
                waits_for = go_on(argument)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                now_s = loop_s()
                self._quota.add_time(now_s - began_s, now_s)
            try:
                go_on, argument = self._work.send, (yield waits_for)
            except BaseException as error:
                go_on, argument = self._work.throw, error


def mutating(
    quota: RequestQuota | None, partitions: Callable[[], int], *, is_strict: bool
) -> AbstractContextManager[None]:
    """As `RequestQuota.mutating`, if there is one."""
    return nullcontext() if quota is None else quota.mutating(partitions(), is_strict=is_strict)
