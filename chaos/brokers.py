"""The brokers that are killed: one in its own process, or three that replicate.

One is killed by SIGKILL. Three run in this process, where the test kit kills one as SIGKILL
would: its connections are reset, written bytes stay, nothing is cleaned up; another one leads.
"""

import random
from pathlib import Path
from typing import Protocol

from chaos.events import make_topic
from suwi.testing import Cluster
from tests.broker_process import BrokerProcess


class Brokers(Protocol):
    @property
    def servers(self) -> str: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def make_topic(self, topic: str, partitions: int) -> None: ...

    def kill(self, chance: random.Random) -> str:
        """Kill one; returns which."""

    def revive(self) -> None:
        """Start the one that was killed."""


class OneBroker:
    def __init__(self, home: Path) -> None:
        self._process = BrokerProcess(home / "broker")

    @property
    def servers(self) -> str:
        return self._process.address

    def start(self) -> None:
        self._process.start()

    def stop(self) -> None:
        self._process.kill()

    def make_topic(self, topic: str, partitions: int) -> None:
        make_topic(self.servers, topic, partitions)

    def kill(self, chance: random.Random) -> str:
        self._process.kill()
        return "broker"

    def revive(self) -> None:
        self._process.start()


class ThreeBrokers:
    def __init__(self, home: Path) -> None:
        self._cluster = Cluster(3, directory=str(home / "brokers"))
        self._dead = 0

    @property
    def servers(self) -> str:
        return self._cluster.bootstrap_servers

    def start(self) -> None:
        self._cluster.start()

    def stop(self) -> None:
        self._cluster.stop()

    def make_topic(self, topic: str, partitions: int) -> None:
        self._cluster.create_topic(topic, partitions, configs={"min.insync.replicas": 2})

    def kill(self, chance: random.Random) -> str:
        self._cluster.wait_until_healthy(timeout_s=300)
        self._dead = chance.choice(self._cluster.brokers)
        self._cluster.kill(self._dead)
        return "broker of three"

    def revive(self) -> None:
        self._cluster.restart(self._dead)
