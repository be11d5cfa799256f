"""DescribeReplicas v0, Suwi's own and never advertised: the state of the replicas on this broker.

Request and response are JSON: `{"topics": ["a", …]}` or `{}` for all, and `{"replicas": […]}` with
the fields of `replica.description.ReplicaState`.
"""

import asyncio
import json

from suwi.model.ids import NodeId
from suwi.net.answers import Answer, CloseConnection, Reply
from suwi.net.dispatch import Request
from suwi.replica.description import describe
from suwi.replica.replicas import Replicas


class DescribeReplicas:
    def __init__(self, replicas: Replicas, node_id: NodeId) -> None:
        self._replicas = replicas
        self._node_id = node_id

    def __call__(self, request: Request) -> Answer:
        try:
            topics = json.loads(bytes(request.body)).get("topics")
        except (ValueError, AttributeError) as error:
            raise CloseConnection(f"DescribeReplicas: {error}") from error
        now_s = asyncio.get_running_loop().time()
        states = [
            describe(partition, self._node_id, now_s).as_json()
            for partition in self._replicas
            if topics is None or partition.partition.topic in topics
        ]
        return Reply([json.dumps({"replicas": states}).encode()])
