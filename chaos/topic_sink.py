"""The run of `chaos/run.py` with a topic as the sink, exactly once: `python -m chaos --sink topic`.

Each driver has another number of tasks than the one before, other `minPartitions`, and adaptive
execution on or off; rows are distributed to tasks by chance.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from chaos.checker import Row
from chaos.events import read_values
from chaos.run import Plan, Run
from suwi.client.addresses import parse_addresses
from suwi.client.cluster import Cluster
from suwi.client.groups import committed_with_metadata
from suwi.client.settings import ClientSettings
from suwi.client.transaction_admin import list_transactions
from suwi.env import local_env
from suwi.model.errors import BrokerError
from suwi.spark.exactly_once import decode_list

OUTPUT = "copies"
_OUTPUT_PARTITIONS = 4


class TopicRun(Run):
    def __init__(self, plan: Plan, home: Path, say: Callable[[str], None]) -> None:
        super().__init__(plan, home, say)
        self._seen: dict[str, int] = {}
        """The version of the last list of transactions, of each pipeline."""
        self._lists = 0

    def _make_topics(self) -> None:
        super()._make_topics()
        self._brokers.make_topic(OUTPUT, _OUTPUT_PARTITIONS)

    def _sink_arguments(self) -> dict[str, str]:
        return {
            "output": OUTPUT,
            "tasks": str(self._random.randint(1, 6)),
            "min-partitions": str(self._random.choice((1, 8, 20))),
            "adaptive": self._random.choice(("true", "false")),
        }

    def _commits(self) -> int:
        """How many lists of transactions were seen: the next moments are those of the commit."""
        asyncio.run(self._look())
        return self._lists

    async def _look(self) -> None:
        settings = ClientSettings(retry_timeout_s=0.5, request_timeout_s=0.5)
        addresses = parse_addresses(self._brokers.servers)
        async with Cluster(addresses, random=local_env().random, settings=settings) as cluster:
            for pipeline in self._plan.pipelines:
                try:
                    found = await committed_with_metadata(cluster, f"chaos-{pipeline}-transactions")
                except (BrokerError, OSError):
                    continue
                version = max((each.offset for each in found.values()), default=0)
                chunks = [found[at].metadata for at in sorted(found) if found[at].offset == version]
                if version > self._seen.get(pipeline, 0) and decode_list(version, chunks).open:
                    self._seen[pipeline] = version
                    self._lists += 1

    def _rows(self) -> list[Row]:
        return self._rows_of_topic()

    def _rows_of_topic(
        self, topic: str = OUTPUT, partitions: int = _OUTPUT_PARTITIONS
    ) -> list[Row]:
        rows = []
        servers = self._brokers.servers
        for value in read_values(servers, topic, partitions, committed_only=True).values():
            row = json.loads(value)
            rows.append(Row(row["pipeline"], (row["partition"], row["offset"]), row["number"]))
        commits = (self._home / "checkpoints").glob("*/commits/[0-9]*")
        self.report.commits = sum(1 for _ in commits)
        self._say(f"transactional ids: {asyncio.run(self._count_ids())}")
        return rows

    async def _count_ids(self) -> int:
        addresses = parse_addresses(self._brokers.servers)
        async with Cluster(addresses, random=local_env().random) as cluster:
            return len((await list_transactions(cluster)).transactions)
