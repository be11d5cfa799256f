"""Requests to a transaction coordinator, its responses, and the markers that it has written."""

from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from suwi.model.ids import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from suwi.transaction.held_requests import HELD_MS_MAX


class Producer(NamedTuple):
    id: ProducerId
    epoch: ProducerEpoch


NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class InitProducerIdRequest(NamedTuple):
    transactional_id: str
    timeout_ms: int
    expected: Producer | None = None
    """What the client believes to be, if it goes on after an error (KIP-360)."""
    new_producer_id: ProducerId | None = None
    """To be used if one is needed."""


class AddPartitionsRequest(NamedTuple):
    transactional_id: str
    producer: Producer
    partitions: tuple[TopicPartition, ...]
    transaction_version: int = 0
    verify_only: bool = False
    held_ms_max: int = HELD_MS_MAX
    """For how long it may wait for the end of the transaction before."""


class EndTxnRequest(NamedTuple):
    transactional_id: str
    producer: Producer
    is_commit: bool
    transaction_version: int = 0
    new_producer_id: ProducerId | None = None
    """To be used if one is needed."""


class ProducerResponse(NamedTuple):
    """To InitProducerId and EndTxn."""

    error: ErrorCode
    producer: Producer = NO_PRODUCER
    needs_producer_id: bool = False
    """Nothing was done: the request is to be made again with a new producer id."""


NEEDS_PRODUCER_ID = ProducerResponse(ErrorCode.coordinator_load_in_progress, needs_producer_id=True)


@dataclass(frozen=True, slots=True, eq=False)
class MarkersToSend:
    """Compared by identity: an answer for one transaction never ends the next (hazard T10)."""

    transactional_id: str
    producer: Producer
    is_commit: bool
    partitions: frozenset[TopicPartition]
    transaction_version: int
