"""A full disk, a real one: reads go on, also after a restart, and writes resume by themselves."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi
from tests.damage.small_disk import SmallDisk, small_disk

PATIENCE_S = 120
READ = ("consume", "orders", "--from-beginning", "--no-follow")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def broker(disk: SmallDisk) -> Iterator[BrokerProcess]:
    with BrokerProcess(disk.path / "data", "log.segment.bytes=16384") as process:
        yield process


def produce(suwi: Suwi, *lines: str) -> None:
    suwi.produce("orders", "".join(f"{line}\n" for line in lines))


def is_refused(suwi: Suwi, *lines: str) -> bool:
    """Whether the broker has not taken them after two seconds."""
    stdin = "".join(f"{line}\n" for line in lines).encode()
    return suwi.run("produce", "orders", "--timeout", 2, stdin=stdin).returncode != 0


def wait_until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, "it never came true"
        time.sleep(0.2)


def problems(suwi: Suwi) -> list[str]:
    """What `suwi status` lists; it must then not be healthy."""
    ended = suwi("status")
    assert ended.exit_code == (1 if "Problems" in ended.stdout else 0), ended.output
    listed = ended.stdout.partition("Problems\n")[2].partition("\n\n")[0]
    return [line.strip() for line in listed.splitlines()]


def written(count: int) -> list[str]:
    return [f"{number} {'x' * 1_000}" for number in range(count)]


@pytest.mark.parametrize("restart", ["killed", "stopped"])
def test_reads_go_on_when_a_broker_restarts_on_a_full_disk(
    disk: SmallDisk, broker: BrokerProcess, restart: str
) -> None:
    suwi = Suwi(broker.address)
    suwi.ok("topics", "create", "orders")
    produce(suwi, *written(100))
    disk.fill()
    assert is_refused(suwi, "refused")
    if restart == "killed":
        broker.kill()
    else:
        broker.stop()
        disk.fill()
    broker.start()
    assert suwi.ok(*READ).splitlines() == written(100)
    assert is_refused(suwi, "refused")
    wait_until(lambda: bool(problems(suwi)))
    (problem,) = problems(suwi)
    assert f"{broker.data}: disk full" in problem
    disk.free()
    wait_until(lambda: problems(suwi) == [])
    produce(suwi, "taken")
    assert suwi.ok(*READ).splitlines() == [*written(100), "taken"]


def test_a_full_disk_is_over_without_a_write(disk: SmallDisk, broker: BrokerProcess) -> None:
    suwi = Suwi(broker.address)
    suwi.ok("topics", "create", "orders")
    produce(suwi, *written(10))
    assert problems(suwi) == []
    disk.fill()
    assert is_refused(suwi, *written(100))
    wait_until(lambda: bool(problems(suwi)))
    (problem,) = problems(suwi)
    assert f"{broker.data}: disk full" in problem
    disk.free()
    wait_until(lambda: problems(suwi) == [])
