"""librdkafka's producer against three replicas of each record: three brokers in one process.

Beside it the same brokers with one replica, to show the cost of replication. One process is one
core, so all three share what one broker has alone.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, NewTopic

from bench.base_env import base_python
from bench.clients import Metrics, run_client
from bench.measure import Figure, take_turns
from bench.plan import Plan
from bench.servers import SUWI, Server, announced_address, running, temporary_directory

JOB = "librdkafka produce, 1000 B records, acks=all, 3 brokers in one process, 3 replicas"
ONE_REPLICA = "Suwi, one replica"
_RECORD_BYTES = 1_000
_RUN = "from suwi.cli.main import app; app()"
_ADMIN_S_MAX = 60


def measure(plan: Plan, _brokers: tuple[str, ...]) -> list[Figure]:
    names = (f"replicated-{number}" for number in itertools.count())
    with _three_in_one() as server:
        runs = {
            system: lambda replicas=replicas: _produce_once(plan, server, next(names), replicas)
            for system, replicas in ((SUWI, 3), (ONE_REPLICA, 1))
        }
        return take_turns(JOB, runs, plan.repetitions)


@contextmanager
def _three_in_one() -> Iterator[Server]:
    with temporary_directory() as directory:
        command = [str(base_python()), "-c", _RUN, "serve", "--brokers", "3"]
        command += ["--listen", "127.0.0.1:0", "--data", str(directory / "data")]
        command += ["--log-level", "warning", "--set", "log.segment.delete.delay.ms=1000"]
        with running(command, directory) as process:
            yield Server(SUWI, announced_address(process), process.pid)


def _produce_once(plan: Plan, server: Server, topic: str, replicas: int) -> Metrics:
    admin = AdminClient({"bootstrap.servers": server.address, "log_level": 3})
    for created in admin.create_topics([NewTopic(topic, 1, replicas)]).values():
        created.result(_ADMIN_S_MAX)
    options = {
        **server.target,
        "work": "produce",
        "topic": topic,
        "record_bytes": _RECORD_BYTES,
        "records": plan.records[_RECORD_BYTES],
        "settings": {},
    }
    metrics = run_client("librdkafka", options)
    server.drop_topic(topic)
    return metrics
