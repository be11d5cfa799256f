"""DescribeReplicas v0, Suwi's own and never advertised: the state of the replicas on this broker.

Request and response are JSON: `{"topics": ["a", …]}` or `{}` for all, and `{"replicas": […]}` with
the fields of `replica.description.ReplicaState`. The response is built in slices, because a broker
may have many thousand replicas.
"""

import asyncio
import json
from collections.abc import Collection

from suwi.handlers.json_body import read_json
from suwi.model.ids import NodeId
from suwi.net.answers import Answer, CloseConnection, Exclusive, Reply
from suwi.net.dispatch import Request
from suwi.replica.description import describe
from suwi.replica.replica_manager import ReplicaManager

_SLICE_S = 0.002


class DescribeReplicas:
    def __init__(self, replicas: ReplicaManager, node_id: NodeId) -> None:
        self._replicas = replicas
        self._node_id = node_id

    def __call__(self, request: Request) -> Answer:
        topics = read_json(request).get("topics")
        if topics is None:
            return Exclusive(self._describe(None))
        if not isinstance(topics, list) or not all(isinstance(name, str) for name in topics):
            raise CloseConnection("DescribeReplicas: topics is not a list of names")
        return Exclusive(self._describe(frozenset(topics)))

    async def _describe(self, topics: Collection[str] | None) -> Reply:
        loop = asyncio.get_running_loop()
        states: list[str] = []
        slice_ends_s = loop.time() + _SLICE_S
        for partition in self._replicas:
            if topics is not None and partition.partition.topic not in topics:
                continue
            now_s = loop.time()
            if now_s > slice_ends_s:
                await asyncio.sleep(0)
                now_s = loop.time()
                slice_ends_s = now_s + _SLICE_S
            if not partition.is_closed:  # deleted in the meantime
                states.append(json.dumps(describe(partition, self._node_id, now_s).as_json()))
        return Reply([b'{"replicas": [', ", ".join(states).encode(), b"]}"])
