"""The producer id and epoch of an idempotent producer."""

import asyncio
from typing import NamedTuple

from suwi.client.cluster import Cluster
from suwi.client.errors import error_from, is_transient
from suwi.client.retry import Retry
from suwi.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId
from suwi.wire.versions import ApiKey


class Identity(NamedTuple):
    producer_id: ProducerId = NO_PRODUCER_ID
    epoch: ProducerEpoch = NO_PRODUCER_EPOCH


NO_IDENTITY = Identity()
"""For a producer that is not idempotent."""


class Identities:
    """Provides the producer's identity, and a new one when the old one cannot be used any more."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._current: Identity | None = None
        self._lock = asyncio.Lock()

    async def other_than(self, used_up: Identity | None) -> Identity:
        """An identity, not `used_up`, whose next sequence in some partition is unknown."""
        async with self._lock:
            if self._current is None or self._current == used_up:
                self._current = await self._new()
            return self._current

    async def _new(self) -> Identity:
        retry = Retry(self._cluster.settings, self._cluster.random)
        while True:
            try:
                answer = await self._cluster.call(
                    ApiKey.INIT_PRODUCER_ID,
                    {
                        "transactional_id": None,
                        "transaction_timeout": 60_000,
                        "producer_id": NO_PRODUCER_ID,
                        "producer_epoch": NO_PRODUCER_EPOCH,
                    },
                )
                if answer.error_code:
                    raise error_from(answer.error_code)
            except Exception as error:
                if not is_transient(error):
                    raise
                await retry.pause_or_raise(error)
            else:
                return Identity(
                    ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch)
                )
