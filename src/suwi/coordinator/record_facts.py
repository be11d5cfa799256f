"""Where a record of an internal topic lies, and which transaction it belongs to."""

from typing import NamedTuple

from suwi.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class RecordFacts(NamedTuple):
    offset: int
    is_committed: bool = True
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    is_transactional: bool = False
