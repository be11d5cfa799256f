"""DescribeReplicas v0, Suwi's own and never advertised: the state of the replicas on this broker.

Request and response are JSON: `{"topics": ["a", …]}`, with `"partition": 3` only that one of each,
or `{}` for all, and `{"replicas": […]}` with the fields of `replica.description.ReplicaState`. The
response is built in slices, because a broker may have many thousand replicas.
"""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from suwi.handlers.json_body import long_json_reply, read_json
from suwi.model.ids import NodeId
from suwi.net.answers import Answer, CloseConnection, Exclusive
from suwi.net.dispatch import Request
from suwi.replica.description import describe
from suwi.replica.partition import Partition
from suwi.replica.replica_manager import ReplicaManager


def describe_replicas(replicas: ReplicaManager, node_id: NodeId, request: Request) -> Answer:
    asked = read_json(request)
    topics, index = asked.get("topics"), asked.get("partition")
    if topics is None:
        return Exclusive(long_json_reply({"replicas": _describe(node_id, replicas)}))
    if not isinstance(topics, list) or not all(isinstance(name, str) for name in topics):
        raise CloseConnection("DescribeReplicas: topics is not a list of names")
    if not (index is None or isinstance(index, int)):
        raise CloseConnection("DescribeReplicas: partition is not a number")
    named = chain.from_iterable(replicas.of_topic(name, index) for name in dict.fromkeys(topics))
    return Exclusive(long_json_reply({"replicas": _describe(node_id, named)}))


def _describe(node_id: NodeId, partitions: Iterable[Partition]) -> Iterator[dict[str, Any]]:
    loop = asyncio.get_running_loop()
    for partition in partitions:
        if not partition.is_closed:  # deleted in the meantime
            yield describe(partition, node_id, loop.time()).as_json()
