"""`python -m chaos.medallion`: the medallion job under kills, compared with plain Python.

Drivers (with JVM and workers), single Python workers, JVMs and the broker are killed at random
moments while orders arrive; what was killed is started again, as a supervisor would. At the end
bronze, silver and gold must be what `examples/medallion/expected.py` computes from the topic.
"""

import argparse
import asyncio
import importlib.util
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from deltalake import DeltaTable

from chaos.events import make_topic
from chaos.processes import ROOT, Process, kill_one
from suwi.client.addresses import parse_addresses
from suwi.client.cluster import Cluster
from suwi.client.producer import Producer
from suwi.env import local_env
from suwi.model.ids import PartitionIndex
from tests.broker_process import BrokerProcess

FOLDER = ROOT / "examples" / "medallion"
PARTITIONS = 3
STRIKES = ("driver", "driver", "jvm", "worker", "worker", "broker")
_ROUND = 20
_PAUSE_S = 0.5
_FINISH_S = 900
_FINISH_TRIES = 5


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"medallion_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Orders:
    """Sends orders, each acknowledged, until it is stopped."""

    def __init__(self, servers: str, seed: int) -> None:
        self.values: list[str] = []
        self._servers = servers
        self._records = load("generate").orders(1_000_000, seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send()), daemon=True)

    def start(self) -> "Orders":
        self._thread.start()
        return self

    def stop(self) -> Sequence[str]:
        self._stop.set()
        self._thread.join()
        return self.values

    async def _send(self) -> None:
        cluster = Cluster(parse_addresses(self._servers), random=local_env().random)
        async with cluster, Producer(cluster, local_env().clock) as producer:
            while not self._stop.is_set():
                sent = []
                for number in range(_ROUND):
                    record = next(self._records)
                    value = str(record["value"])
                    partition = PartitionIndex(number % PARTITIONS)
                    delivery = await producer.send(
                        "orders", value.encode(), key=record["key"].encode(), partition=partition
                    )
                    sent.append((value, delivery))
                for value, delivery in sent:
                    await delivery
                    self.values.append(value)
                await asyncio.sleep(_PAUSE_S)


class Run:
    def __init__(self, home: Path, kills: int, minutes: float, seed: int) -> None:
        self._home = home
        self._lake = home / "lake"
        self._kills = kills
        self._until_s = time.monotonic() + 60 * minutes
        self._random = random.Random(seed)
        self._seed = seed
        self._broker = BrokerProcess(home / "broker")
        self._driver: Process | None = None
        self.killed: Counter[str] = Counter()

    def go(self) -> list[str]:
        """The differences at the end."""
        self._broker.start()
        try:
            make_topic(self._broker.address, "orders", PARTITIONS)
            make_topic(self._broker.address, "orders-bad", 1)
            load("generate").write_products(str(self._lake / "products"))
            orders = Orders(self._broker.address, self._seed).start()
            while self.killed.total() < self._kills and time.monotonic() < self._until_s:
                self._keep_running()
                self._strike(self._random.choice(STRIKES))
            values = orders.stop()
            self._finish()
            return self._compare(values)
        finally:
            if self._driver is not None and self._driver.is_running:
                self._driver.kill()
            self._broker.kill()

    def _keep_running(self) -> None:
        if self._driver is None or not self._driver.is_running:
            self._driver = self._start()
        # Somewhere between the start and a few batches of each layer.
        before = self._commits()
        limit_s = time.monotonic() + 120
        while self._commits() == before and time.monotonic() < limit_s:
            if not self._driver.is_running:
                return
            time.sleep(0.01)
        time.sleep(self._random.uniform(0, 5))

    def _start(self, *more: str) -> Process:
        arguments = ["--servers", self._broker.address, "--lake", str(self._lake), *more]
        log = self._home / "drivers.log"
        return Process([str(FOLDER / "medallion.py"), *arguments], log)

    def _commits(self) -> int:
        return sum(1 for _ in self._lake.glob("*/_delta_log/*.json"))

    def _strike(self, kind: str) -> None:
        driver = self._driver
        assert driver is not None
        match kind:
            case "driver" if driver.is_running:
                driver.kill()
            case "jvm" if driver.is_running and len(driver.family()) > 1:
                kill_one(driver.family()[0])
                driver.wait(120)
                if driver.is_running:
                    driver.kill()
            case "worker" if driver.workers():
                kill_one(self._random.choice(driver.workers()))
            case "broker":
                self._broker.kill()
                time.sleep(self._random.uniform(0, 1))
                self._broker.start()
            case _:
                return
        self.killed[kind] += 1
        print(f"  {self.killed.total():3} of {self._kills}: killed the {kind}", flush=True)

    def _finish(self) -> None:
        assert self._driver is not None
        if self._driver.is_running:
            self._driver.kill()
        for _ in range(_FINISH_TRIES):
            self._driver = self._start("--once")
            if self._driver.wait(_FINISH_S) == 0:
                return
        raise AssertionError(f"the job did not finish: see {self._home / 'drivers.log'}")

    def _compare(self, values: Sequence[str]) -> list[str]:
        expected = load("expected").Expected(values, load("generate").PRODUCTS)
        tables = [self._rows(layer) for layer in ("bronze", "silver", "gold")]
        bad = [record.value.decode() for record in self._broker.stored_records("orders-bad")]
        sizes = ", ".join(str(len(rows)) for rows in tables)
        print(f"{len(values)} records; rows: {sizes}; dead letters: {len(bad)}", flush=True)
        found: list[str] = expected.differences(*tables, bad)
        return found

    def _rows(self, layer: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (
            DeltaTable(str(self._lake / layer)).to_pyarrow_table().to_pylist()
        )
        return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.medallion", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=18, help="of kills, at most")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory(prefix="suwi-medallion-") as directory:
        home = Path(directory)
        print(f"{arguments.kills} kills, seed {seed}, in {home}", flush=True)
        run = Run(home, arguments.kills, arguments.minutes, seed)
        differences = run.go()
        kills = ", ".join(f"{times} × {kind}" for kind, times in run.killed.most_common())
        print(f"killed {run.killed.total()}: {kills}")
        print("; ".join(differences) or "equal")
        if differences:
            print((home / "drivers.log").read_text(errors="replace")[-5_000:], file=sys.stderr)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
