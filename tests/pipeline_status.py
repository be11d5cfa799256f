"""A pipeline's status, and its publication as a running pipeline does it."""

import asyncio
import threading

from suwi.client.addresses import parse_addresses
from suwi.client.cluster import Cluster
from suwi.client.pipeline_status import RUNNING, PipelineStatus, QueryStatus, publish_status
from suwi.env import local_env

QUERY = QueryStatus("orders", "topic orders → /lake", "orders", 3, 500, 40, 80.0, 2, 9_000)
STATUS = PipelineStatus("orders", RUNNING, "here", 1_000, 9_500, 0, None, None, (QUERY,))


def named(name: str) -> PipelineStatus:
    return STATUS._replace(pipeline=name, queries=(QUERY._replace(query=name, group=name),))


def publish(servers: str, *statuses: PipelineStatus) -> None:
    env = local_env()

    async def run() -> None:
        async with Cluster(parse_addresses(servers), random=env.random) as cluster:
            for status in statuses:
                await publish_status(cluster, env.clock, status)

    # A thread of its own: the test may be inside a loop, as that of a browser is.
    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    thread.join()
