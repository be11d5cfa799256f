"""The end offsets of partitions, whichever broker leads them, for the lag of groups.

Those of other leaders are asked for with ListOffsets. If one does not answer in time, what it
answered before stays.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final

from suwi.env.slices import in_slices
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_EPOCH, NO_NODE, NodeId, Offset, TopicPartition
from suwi.replica.peers import Peers
from suwi.replica.replica_log import wait_until_ready
from suwi.replica.replica_manager import ReplicaManager
from suwi.wire.errors import MalformedResponse
from suwi.wire.versions import APIS, ApiKey

log = logging.getLogger(__name__)

_VERSION: Final = APIS[ApiKey.LIST_OFFSETS].max_version
_LATEST: Final = -1
_TIMEOUT_S: Final = 3.0
"""For all leaders together: a scrape waits for it."""
_PARTITIONS_PER_REQUEST: Final = 500
_OPENED_AT_ONCE: Final = 50
_LOOKED_UP_AT_ONCE: Final = 1_000

Ends = dict[TopicPartition, Offset]


class EndOffsets:
    def __init__(self, node_id: NodeId, peers: Peers) -> None:
        self._node_id = node_id
        self._peers = peers
        self._known: Ends = {}

    async def refresh(self, wanted: Collection[TopicPartition], replicas: ReplicaManager) -> Ends:
        """The high watermarks of these partitions, without those that are not known.

        Logs of `replicas` are opened if need be: a partition without traffic has a lag, too.
        """
        by_leader: dict[NodeId, list[TopicPartition]] = defaultdict(list)
        async for tp in in_slices(wanted, _LOOKED_UP_AT_ONCE):
            state = replicas.image.partition(tp)
            if state is not None and state.leader != NO_NODE:
                by_leader[state.leader].append(tp)
        own = by_leader.pop(self._node_id, [])
        found: Ends = {}
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await asyncio.gather(
                    _read(own, replicas, found),
                    *(self._ask(node, asked, found) for node, asked in by_leader.items()),
                )
        except TimeoutError:
            log.info("end offsets not found within the time limit", extra={"found": len(found)})
        self._known = {tp: self._known[tp] for tp in wanted if tp in self._known} | found
        return self._known

    async def _ask(self, leader: NodeId, partitions: list[TopicPartition], found: Ends) -> None:
        try:
            connection = await self._peers.connect(leader)
            try:
                for first in range(0, len(partitions), _PARTITIONS_PER_REQUEST):
                    some = partitions[first : first + _PARTITIONS_PER_REQUEST]
                    answer = await connection.call(ApiKey.LIST_OFFSETS, _VERSION, _request(some))
                    for topic in answer.topics:
                        for each in topic.partitions:
                            if not each.error_code:
                                tp = TopicPartition(topic.name, each.partition_index)
                                found[tp] = Offset(each.offset)
            finally:
                connection.abort()
        except (OSError, MalformedResponse, BrokerError) as error:
            log.info("end offsets not found", extra={"broker": leader, "reason": str(error)})


async def _read(partitions: list[TopicPartition], replicas: ReplicaManager, found: Ends) -> None:
    led = {partition.partition: partition for partition in replicas.led()}
    for first in range(0, len(partitions), _OPENED_AT_ONCE):
        some = [(tp, led[tp]) for tp in partitions[first : first + _OPENED_AT_ONCE] if tp in led]
        unopened = [partition.replica_log for _, partition in some if not partition.is_open]
        await wait_until_ready(unopened, _TIMEOUT_S)
        for tp, partition in some:
            if partition.is_open:
                found[tp] = partition.watermark_as_it_is
        await asyncio.sleep(0)


def _request(partitions: list[TopicPartition]) -> dict[str, Any]:
    topics: dict[str, list[dict[str, int]]] = defaultdict(list)
    for tp in partitions:
        topics[tp.topic].append(
            {
                "partition_index": tp.partition,
                "current_leader_epoch": NO_EPOCH,
                "timestamp": _LATEST,
            }
        )
    return {
        "replica_id": NO_NODE,
        "isolation_level": 0,
        "topics": [{"name": name, "partitions": asked} for name, asked in topics.items()],
        "timeout": int(_TIMEOUT_S * 1000),
    }
