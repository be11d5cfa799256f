"""Requests to the coordinator of one group or transactional id, wherever it moves.

`call` asks once, `ask` again and again for as long as that may help; `asking` is for one
question. A member's connection is its own: a JoinGroup that waits for other members
would delay what is fetched from the same broker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from suwi.client.cluster import Cluster
from suwi.client.errors import Unreachable, check, error_from, is_transient
from suwi.client.retry import Retry
from suwi.client.versioned_connection import VersionedConnection
from suwi.model.errors import BrokerError, LeaderNotAvailable
from suwi.model.ids import NO_NODE, NodeId
from suwi.wire.versions import ApiKey

_T = TypeVar("_T")

_MOVED = (ErrorCode.coordinator_not_available, ErrorCode.not_coordinator)


class KeyType(IntEnum):
    """As in FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(eq=False, repr=False)
class Coordinator:
    cluster: Cluster
    key: str
    """A group or a transactional id."""
    _key_type: KeyType = KeyType.GROUP
    shares_connection: bool = field(default=False, kw_only=True)
    """With others of the cluster."""
    node: NodeId = NO_NODE
    """The coordinator, once it was found."""
    _link: VersionedConnection | None = None
    _finding: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def call(
        self,
        api: ApiKey,
        fields: Mapping[str, Any],
        *,
        at_most: int | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Ask the coordinator once. Raises a `BrokerError` and OSError if there is none; the
        caller passes its answer to `check`."""
        link = await self.link(api)
        try:
            return await link.call(api, fields, at_most=at_most, timeout_s=timeout_s)
        except OSError:
            self._forget(link)
            raise

    def check(self, answer: Any) -> None:
        """Raise the error of its answer, or of a part of it, if it has one."""
        if answer.error_code:
            raise self.refused(answer.error_code, getattr(answer, "error_message", None))

    def refused(self, code: int, message: str | None = None) -> BrokerError:
        """The exception for an error code of its answer; one that has moved is looked for again."""
        if code in _MOVED and self._link is not None:
            self._forget(self._link)
        return error_from(code, message)

    async def ask(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Retry after transient errors, up to the retry timeout. If no broker has ever responded,
        the addresses are likely wrong: raises `Unreachable` at once."""
        retry = Retry(self.cluster.settings, self.cluster.random)
        while True:
            try:
                return await attempt()
            except (BrokerError, OSError) as error:
                never_answered = isinstance(error, Unreachable) and not self.cluster.brokers
                if never_answered or not is_transient(error):
                    raise
                await retry.pause_or_raise(error)

    @property
    def current_link(self) -> VersionedConnection | None:
        """The connection over which the coordinator was asked last, if it is still open."""
        return self._link if self._link is not None and self._link.is_open else None

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None and not self.shares_connection:
            await link.close()

    def _forget(self, link: VersionedConnection) -> None:
        if link is self._link:
            self._link = None
            if not self.shares_connection:
                link.abort()

    async def link(self, api: ApiKey) -> VersionedConnection:
        """The connection to the coordinator, which is looked for if necessary. `api`: what brokers
        must serve, or `UnsupportedVersion` is raised; also a `BrokerError`, OSError."""
        async with self._finding:
            if self.current_link is not None:
                return self.current_link
            # Brokers that do not serve the API have no coordinator: do not wait for one.
            (await self.cluster.any_link()).version(api)
            answer = await self.cluster.call(
                ApiKey.FIND_COORDINATOR,
                {"key": self.key, "key_type": self._key_type, "coordinator_keys": [self.key]},
            )
            (found,) = getattr(answer, "coordinators", None) or (answer,)
            check(found)
            node = NodeId(found.node_id)
            if node not in self.cluster.brokers:
                await self.cluster.refresh([])
            if node not in self.cluster.brokers:
                raise LeaderNotAvailable(f"broker {node} is new, and not known yet")
            connect = self.cluster.link if self.shares_connection else self.cluster.open_link
            self._link = await connect(node)
            self.node = node
            return self._link


async def asking(
    cluster: Cluster,
    key: str,
    question: Callable[[Coordinator], Awaitable[_T]],
    key_type: KeyType = KeyType.GROUP,
) -> _T:
    """Send an idempotent request, with retries. Raises a `BrokerError`, OSError."""
    coordinator = Coordinator(cluster, key, key_type, shares_connection=True)
    return await coordinator.ask(lambda: question(coordinator))
