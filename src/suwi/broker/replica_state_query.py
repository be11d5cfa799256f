"""Queries brokers for the state of their replicas (DescribeReplicas), for the controller."""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

from suwi.controller.replica_state_query import Answers, Asked, ReplicaFacts
from suwi.metadata.image import BrokerInfo
from suwi.model.ids import LeaderEpoch, NodeId, Offset, PartitionIndex, TopicPartition
from suwi.replica.peers import Peers
from suwi.wire.versions import ApiKey

log = logging.getLogger(__name__)


class ReplicaStateQuery:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def query_replica_states(
        self, asked: Asked, brokers: Mapping[NodeId, BrokerInfo], timeout_s: float
    ) -> Answers:
        """The states of these partitions' replicas on these brokers; without those of brokers that
        do not respond within the timeout."""
        topics: dict[NodeId, dict[str, None]] = {}
        for tp, nodes in asked.items():
            for node in sorted(brokers.keys() & set(nodes)):
                topics.setdefault(node, {})[tp.topic] = None
        answers: dict[TopicPartition, dict[NodeId, ReplicaFacts]] = {tp: {} for tp in asked}
        responses = await asyncio.gather(
            *(self._query(brokers[node], list(names), timeout_s) for node, names in topics.items())
        )
        for node, facts in zip(topics, responses, strict=True):
            for tp, state in facts.items():
                if tp in asked and node in asked[tp]:
                    answers[tp][node] = state
        return answers

    async def _query(
        self, broker: BrokerInfo, topics: list[str], timeout_s: float
    ) -> dict[TopicPartition, ReplicaFacts]:
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._peers.connect_to(broker)
                try:
                    body = json.dumps({"topics": topics}).encode()
                    response = await connection.send(ApiKey.DESCRIBE_REPLICAS, 0, [body])
                finally:
                    connection.abort()
            replicas = json.loads(bytes(response))["replicas"]
            return dict(_facts(replica) for replica in replicas if replica["problem"] is None)
        except (OSError, ValueError, KeyError) as error:
            log.info(
                "replica state query failed", extra={"broker": broker.id, "reason": str(error)}
            )
            return {}


def _facts(replica: dict[str, Any]) -> tuple[TopicPartition, ReplicaFacts]:
    tp = TopicPartition(replica["topic"], PartitionIndex(replica["partition"]))
    epochs = replica["epochs"]
    return tp, ReplicaFacts(
        LeaderEpoch(epochs[-1][0] if epochs else -1),
        Offset(replica["log_end"]),
        Offset(replica["high_watermark"]),
        Offset(replica["recovery_point"]),
    )
