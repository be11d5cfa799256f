"""All records of `__consumer_offsets`, with Apache Kafka's schemas.

Keys and values are frozen; `encode` gives their bytes, `GROUP_RECORDS` reads them. Values are
written in the versions that Kafka 4.3 writes and read in all that it reads.
"""

from typing import Final

from suwi.coordinator.record import Codec
from suwi.group.classic_group_records import CLASSIC_GROUP_RECORDS
from suwi.group.consumer_group_records import CONSUMER_GROUP_RECORDS
from suwi.group.offset_records import OFFSET_RECORDS

GROUP_RECORDS: Final = Codec({**OFFSET_RECORDS, **CLASSIC_GROUP_RECORDS, **CONSUMER_GROUP_RECORDS})
