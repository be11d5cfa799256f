"""`suwi serve --brokers 3 --faults`: brokers of one process are broken by commands of another."""

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from suwi.cli.breakable_brokers import _Faults
from suwi.local_cluster.cluster import ClusterError
from suwi.local_cluster.served_brokers import FILE, HOLD_S, ServedBrokers
from suwi.sim import Simulation
from suwi.testing.brokers import Brokers
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi
from tests.testing.clients import until

PATIENCE_S = 120


@contextmanager
def serving(data: Path, *options: object) -> "Iterator[tuple[subprocess.Popen[bytes], Suwi]]":
    """The process, and commands for its brokers."""
    command = ("serve", "--brokers", 3, "--faults", "--listen", "127.0.0.1:0", "--data", data)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with Suwi("").start(*command, *options, **pipes) as process:
        try:
            yield process, Suwi(addresses_of(process))
        finally:
            process.kill()


def addresses_of(process: "subprocess.Popen[bytes]") -> str:
    """As the process prints them."""
    assert process.stdout is not None
    seen = b""
    while (found := re.search(rb"serve at (\S+), (\S+), (\S+)\n", seen)) is None:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    return b",".join(found.groups()).decode()


def alive(suwi: Suwi) -> list[int]:
    done = suwi.run("status", "--json")
    brokers = json.loads(done.stdout)["brokers"] if done.stdout else []
    return [broker["node"] for broker in brokers if broker["state"] == "running"]


@pytest.mark.slow
def test_brokers_of_one_process_are_killed_paused_and_cut_off_by_commands(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as (process, suwi):
        suwi.ok("topics", "create", "orders", "--replication-factor", 3)
        assert (data / FILE).stat().st_mode & 0o077 == 0

        def cluster(*words: object) -> str:
            return Suwi("").ok("cluster", *words, "--data", data)

        def in_sync() -> set[int]:
            (topic,) = suwi.json("topics", "describe", "orders")
            return set(topic["partitions"][0]["isr"])

        assert cluster("kill", 3) == "broker-3 killed\n"
        until(lambda: in_sync() == {1, 2})
        assert cluster("restart", 3) == "broker-3 serves\n"
        until(lambda: in_sync() == {1, 2, 3})
        cluster("pause", 2)
        until(lambda: in_sync() == {1, 3})
        cluster("resume", 2)
        until(lambda: in_sync() == {1, 2, 3})
        cluster("cut", 1, 3)
        cluster("slow", 2)
        cluster("heal")
        assert cluster("fill-disk", 3) == "broker-3 has a full disk\n"
        assert suwi.run("produce", "orders", stdin=b"x\n").returncode == 0
        until(lambda: in_sync() == {1, 2})
        cluster("free-disk", 3)
        until(lambda: in_sync() == {1, 2, 3})
        assert cluster("power-loss", 3) == "broker-3 has lost power\n"
        until(lambda: in_sync() == {1, 2})
        cluster("restart", 3)
        until(lambda: in_sync() == {1, 2, 3})
        assert cluster("hold").startswith("replication is held, for 20 s at most")
        cluster("heal")
        failed = Suwi("").run("cluster", "kill", 7, "--data", data)
        assert b"there is no broker 7: they are 1 to 3" in failed.stderr
        assert failed.returncode == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert not (data / FILE).exists()
    assert not ServedBrokers(str(data)).is_there
    with serving(data) as (_, suwi):  # the data are still there
        assert suwi.json("topics", "list")[0]["topic"] == "orders"


@pytest.mark.parametrize(
    "words", [("power-loss", 1), ("fill-disk", 1), ("free-disk", 1), ("hold",)]
)
def test_what_processes_of_one_machine_cannot_have_is_refused(
    tmp_path: Path, words: tuple[object, ...]
) -> None:
    failed = Suwi("").run("cluster", *words, "--data", tmp_path)
    assert (failed.returncode, failed.stdout) == (1, b"")
    assert b"only brokers of `suwi serve --brokers N --faults` can have this" in failed.stderr


def test_who_has_not_read_the_file_breaks_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, suwi):
        told = json.loads((tmp_path / FILE).read_text())
        other = tmp_path / "other"
        other.mkdir()
        (other / FILE).write_text(json.dumps({**told, "token": "another"}))
        with pytest.raises(ClusterError, match="the token is wrong"):
            ServedBrokers(str(other)).kill("1")
        assert suwi.run("topics", "list").returncode == 0


def test_replication_is_held_until_it_is_healed(tmp_path: Path) -> None:
    with serving(tmp_path, "--set", "replica.lag.time.max.ms=120000") as (_, suwi):
        suwi.ok("topics", "create", "orders", "--replication-factor", 3)
        assert suwi.run("produce", "orders", stdin=b"before\n").returncode == 0
        brokers = ServedBrokers(str(tmp_path))
        brokers.hold()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with suwi.start("produce", "orders", **pipes) as producing:
            assert producing.stdin is not None
            producing.stdin.write(b"held\n")
            producing.stdin.close()

            def ends() -> dict[int, int]:
                (partition,) = suwi.json("topics", "describe", "orders", "--replicas")
                return {each["node"]: each["log_end"] for each in partition["replicas"]}

            until(lambda: sorted(ends().values()) == [1, 1, 2], ends)
            assert producing.poll() is None
            brokers.heal()
            assert producing.wait(PATIENCE_S) == 0
        until(lambda: sorted(ends().values()) == [2, 2, 2], ends)


class Links:
    """In the place of brokers: remembers what was done to their links."""

    all = (1, 2, 3)

    def __init__(self) -> None:
        self.done: list[str] = []

    async def partition(self, *sides: list[int]) -> None:
        assert [*sides] == [[1], [2], [3]]
        self.done.append("held")

    async def heal(self) -> None:
        self.done.append("healed")


def test_what_is_held_is_let_go_by_itself() -> None:
    async def scenario() -> None:
        links = Links()
        faults = _Faults(cast(Brokers, links))
        await faults.act("hold", {})
        await asyncio.sleep(HOLD_S - 1)
        await faults.act("hold", {})  # From now on, not from the first time.
        await asyncio.sleep(HOLD_S - 1)
        assert links.done == ["held", "held"]
        await asyncio.sleep(2)
        assert links.done == ["held", "held", "healed"]
        await faults.act("hold", {})
        await faults.act("heal", {})
        await asyncio.sleep(HOLD_S + 1)
        assert links.done[3:] == ["held", "healed"]

    Simulation(1).run(scenario())


def test_links_of_the_lab_are_slow_for_your_own_client() -> None:
    command = ("lab", "serve", "--link-delay", "200ms")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with Suwi("").start(*command, **pipes) as process:
        try:
            suwi = Suwi(addresses_of(process))
            create = ("topics", "create", "orders", "--replication-factor", 3, "--if-not-exists")
            until(lambda: suwi(*create).exit_code == 0, lambda: suwi(*create).output)
            assert suwi.run("produce", "orders", stdin=b"x\n").returncode == 0
            assert suwi.ok("consume", "orders", "--from-beginning", "--count", 1) == "x\n"
            assert process.stdout is not None
            (data,) = re.findall(rb"^data in +(\S+)$", process.stdout.readline(), re.MULTILINE)
            Suwi("").ok("cluster", "fill-disk", 2, "--data", data.decode())
            assert suwi.run("produce", "orders", stdin=b"y\n").returncode == 0
        finally:
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=PATIENCE_S)[0]
            assert process.returncode == 0
    for line in said.splitlines():  # A line of the log has its time and fields.
        assert line != b"problem", said


@pytest.mark.parametrize("delay", ["0ms", "fast", "6s", "-1ms"])
def test_a_delay_that_makes_no_sense_is_refused(delay: str) -> None:
    assert "give a time up to 5s" in Suwi("").misuse("lab", "serve", f"--link-delay={delay}")


def test_data_of_a_single_broker_and_data_in_use_are_refused(tmp_path: Path) -> None:
    one, three = tmp_path / "one", tmp_path / "three"
    with BrokerProcess(one):
        pass
    faults = ("serve", "--brokers", 3, "--faults", "--listen", "127.0.0.1:0", "--data")
    refused = Suwi("").run(*faults, one)
    assert b"holds the data of a single broker" in refused.stderr
    with serving(three):
        refused = Suwi("").run(*faults, three)
        assert b"is in use by another broker" in refused.stderr
        assert refused.returncode == 1
