"""The producer id and epoch of an idempotent producer.

`init_producer_id` asks for one; `Identities` keeps the current one of a producer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from suwi.client.cluster import Cluster
from suwi.client.errors import check, is_transient
from suwi.client.retry import Retry
from suwi.model.ids import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from suwi.wire.versions import ApiKey


class Identity(NamedTuple):
    producer_id: ProducerId = NO_PRODUCER_ID
    epoch: ProducerEpoch = NO_PRODUCER_EPOCH


NO_IDENTITY = Identity()
"""For a producer that is not idempotent."""


async def init_producer_id(
    call: Callable[..., Awaitable[Any]],
    transactional_id: str | None = None,
    timeout_ms: int = 60_000,
    current: Identity = NO_IDENTITY,
    check: Callable[[Any], None] = check,
) -> Identity:
    """Ask once: any broker, or the coordinator of the transactional id. Raises its error."""
    answer = await call(
        ApiKey.INIT_PRODUCER_ID,
        {
            "transactional_id": transactional_id,
            "transaction_timeout": timeout_ms,
            "producer_id": current.producer_id,
            "producer_epoch": current.epoch,
        },
    )
    check(answer)
    return Identity(ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch))


class Identities:
    """Provides the producer's identity, and a new one when the old one cannot be used any more."""

    transactional_id: str | None = None
    produce_version_max: int | None = None

    def __init__(self, cluster: Cluster) -> None:
        self.current: Identity | None = None
        self._cluster = cluster
        self._lock = asyncio.Lock()

    async def admit(self, partition: TopicPartition) -> None:
        """Called before each attempt to send a batch. Raises if none may be sent."""

    def failed(self, error: Exception, *, is_sequence_known: bool) -> None:
        """Called when a batch could not be delivered."""

    async def other_than(self, used_up: Identity | None) -> Identity:
        """An identity, not `used_up`, whose next sequence in some partition is unknown."""
        async with self._lock:
            if self.current is None or self.current == used_up:
                self.current = await self._new()
            return self.current

    async def _new(self) -> Identity:
        retry = Retry(self._cluster.settings, self._cluster.random)
        while True:
            try:
                return await init_producer_id(self._cluster.call)
            except Exception as error:
                if not is_transient(error):
                    raise
                await retry.pause_or_raise(error)
