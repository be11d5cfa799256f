"""DescribeTopicStats v0, Suwi's own and never advertised: how much was written to each topic.

The response is JSON: `{"topics": [{"topic": "a", "bytes_in": 1700}, …]}`, the bytes that this
broker has appended as a leader since it started, which is what Kafka's BytesInPerSec counts. Topics
that nobody has written to since are left out.
"""

import asyncio

from suwi.env.slices import Pace
from suwi.handlers.json_body import long_json_reply, read_json
from suwi.net.answers import Answer, Exclusive, Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager


def describe_topic_stats(replicas: ReplicaManager, request: Request) -> Answer:
    read_json(request)
    return Exclusive(_answer(replicas))


async def _answer(replicas: ReplicaManager) -> Reply:
    pace, bytes_in = Pace(), dict[str, int]()
    for partition in replicas:
        if partition.bytes_in and not partition.is_closed:  # deleted in the meantime
            topic = partition.partition.topic
            bytes_in[topic] = bytes_in.get(topic, 0) + partition.bytes_in
        if pace.is_over(1):
            await asyncio.sleep(0)
    topics = ({"topic": topic, "bytes_in": size} for topic, size in bytes_in.items())
    return await long_json_reply({"topics": topics})
