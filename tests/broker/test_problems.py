"""What a broker reports as wrong with it, from the first effect to the end."""

import asyncio
import errno
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.broker.broker import Broker
from suwi.env import File, LocalDisk
from suwi.env.problems import Problem, ProblemKind, Problems
from suwi.env.tasks import QUIET_MS
from suwi.log.directory_state import DirectoryState, PartitionDirectory
from suwi.log.file_cache import FileCache
from suwi.metadata.memory import MemoryView
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.replica.problem_watch import ProblemWatch
from suwi.sim import ManualClock, Simulation
from suwi.sim.cluster import DATA, SimCluster
from tests.broker.simulated import SimBroker, create_topic, fetch_once, produce, wait_until_up
from tests.broker.test_simulated_cluster import run, state, until
from tests.broker.test_simulated_full_disk import fill, free
from tests.broker.test_simulated_losses import create_orders, write

WITHIN_A_MINUTE_S = 60


def problems_of(broker: Broker | None) -> list[Problem]:
    assert broker is not None
    return list(broker.problems)


async def is_reported(broker: SimBroker, kind: ProblemKind, place: str) -> Problem:
    """The one problem of the broker, which it must report within a minute."""
    async with asyncio.timeout(WITHIN_A_MINUTE_S):
        await until(lambda: bool(problems_of(broker.broker)))
    (found,) = problems_of(broker.broker)
    assert (found.kind, found.place) == (kind, place)
    return found


async def is_over(broker: SimBroker) -> None:
    async with asyncio.timeout(WITHIN_A_MINUTE_S):
        await until(lambda: not problems_of(broker.broker))


def test_a_full_disk_is_a_problem_until_there_is_space_although_nobody_writes() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await wait_until_up(broker)
        await create_topic(client, "orders")
        assert (await produce(client, "orders", [b"v"])).error_code == ErrorCode.none
        disk = broker.machine.disk
        disk.fill()
        assert (await produce(client, "orders", [b"v"])).error_code != ErrorCode.none
        await is_reported(broker, ProblemKind.DISK_FULL, DATA)
        await asyncio.sleep(WITHIN_A_MINUTE_S)
        await is_reported(broker, ProblemKind.DISK_FULL, DATA)
        disk.free()
        await is_over(broker)
        assert (await produce(client, "orders", [b"v"])).error_code == ErrorCode.none

    simulation.run(scenario())


def test_metadata_that_found_no_space_is_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        disk = broker.machine.disk
        disk.fill()
        monkeypatch.setattr(MemoryView, "full_errors", 1)
        await is_reported(broker, ProblemKind.DISK_FULL, DATA)
        disk.free()
        await is_over(broker)

    simulation.run(scenario())


def test_a_directory_without_access_rights_is_a_problem_until_it_can_be_opened() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, "orders")
        assert (await produce(client, "orders", [b"v"])).error_code == ErrorCode.none
        await broker.stop()
        forbidden = broker.machine.disk.faults.fail(
            "list_dir", errno.EACCES, path="*orders-0*", times=None
        )
        await broker.start()
        client = await wait_until_up(broker)
        fetched = await fetch_once(client, "orders", 0)
        assert fetched.error_code == ErrorCode.kafka_storage_error
        found = await is_reported(broker, ProblemKind.LOG_UNREADABLE, "orders-0")
        assert "Permission denied" in found.reason
        broker.machine.disk.faults.remove(forbidden)
        await is_over(broker)
        assert (await fetch_once(client, "orders", 0)).error_code == ErrorCode.none

    simulation.run(scenario())


def test_an_open_log_whose_files_become_inaccessible_is_a_problem_meanwhile() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await wait_until_up(broker)
        await create_topic(client, "orders")
        assert (await produce(client, "orders", [b"v"])).error_code == ErrorCode.none
        faults = broker.machine.disk.faults
        forbidden = [
            faults.fail(operation, errno.EACCES, path="*orders-0*", times=None)
            for operation in ("open", "write")
        ]
        refused = await produce(client, "orders", [b"v"])
        assert refused.error_code == ErrorCode.kafka_storage_error
        await is_reported(broker, ProblemKind.LOG_UNREADABLE, "orders-0")
        for fault in forbidden:
            faults.remove(fault)
        await is_over(broker)

    simulation.run(scenario())


def test_no_descriptors_are_a_problem_even_if_nothing_else_fails() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        faults = broker.machine.disk.faults
        exhausted = faults.fail("read", errno.EMFILE, path="*meta.properties", times=None)
        await is_reported(broker, ProblemKind.NO_DESCRIPTORS, "broker")
        faults.remove(exhausted)
        await is_over(broker)

    simulation.run(scenario())


def test_refused_connections_are_a_problem_until_there_is_room() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation, max_connections="3")
        await broker.start()
        opened = [await broker.connect() for _ in range(4)]
        found = await is_reported(broker, ProblemKind.CONNECTIONS_REFUSED, "broker")
        assert found.reason == "too many connections: 3 are open"
        for connection in opened:
            connection.abort()
        await is_over(broker)

    simulation.run(scenario())


def test_a_damaged_batch_of_the_leader_is_a_problem_of_the_follower_that_finds_it() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await create_orders(cluster, [1, 2])
        assert await write(cluster, 1, [b"a"]) == 0
        cluster[2].kill()
        await until(lambda: set(state(cluster).isr) == {1})
        assert await write(cluster, 1, [b"to be damaged"]) == 0
        path = f"{DATA}/orders-0/00000000000000000000.log"
        file = cluster[1].machine.disk.open(path)
        (byte,) = file.pread(1, file.size() - 4)
        at = file.size() - 4
        file.pwrite(bytes([byte ^ 1]), at)
        await cluster[2].start()
        await until(lambda: bool(problems_of(cluster[2].broker)))
        (found,) = problems_of(cluster[2].broker)
        assert (found.kind, found.place) == (ProblemKind.DAMAGED_BATCH, "orders-0 on broker 1")
        assert "the checksum of the batch 1 is wrong" in found.reason
        file.pwrite(bytes([byte]), at)
        file.close()
        await until(lambda: problems_of(cluster[2].broker) == [])

    run(scenario)


def test_a_follower_on_a_full_disk_reports_it_until_there_is_space() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await create_orders(cluster, [1, 2, 3])
        assert await write(cluster, 1, [b"a"]) == 0
        fill(cluster[3])
        assert await write(cluster, 1, [b"b"]) == 0
        await until(lambda: bool(problems_of(cluster[3].broker)))
        (found,) = problems_of(cluster[3].broker)
        assert (found.kind, found.place) == (ProblemKind.DISK_FULL, DATA)
        assert [problems_of(cluster[n].broker) for n in (1, 2)] == [[], []]
        free(cluster[3])
        await until(lambda: problems_of(cluster[3].broker) == [])

    run(scenario)


def test_a_task_that_fails_again_and_again_is_a_problem_until_it_works() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        assert broker.broker is not None
        tasks = broker.broker.tasks
        tasks.count("sums", ZeroDivisionError())
        assert problems_of(broker.broker) == []  # it may have been the only time
        tasks.count("sums", ZeroDivisionError())
        await is_reported(broker, ProblemKind.TASK_FAILING, "sums")
        await asyncio.sleep(QUIET_MS / 1000)
        await is_over(broker)

    simulation.run(scenario())


class _NamesThreads(LocalDisk):
    """Remembers which thread opened files."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def open(self, path: str, *, create: bool = False) -> File:
        self.threads.add(threading.current_thread().name)
        return super().open(path, create=create)


def test_whether_the_files_of_a_log_can_be_opened_again_is_tried_off_the_loop(
    tmp_path: Path,
) -> None:
    """A log may have thousands of files, and a broker thousands of logs."""
    disk, problems = _NamesThreads(), Problems(ManualClock())
    state = DirectoryState(str(tmp_path), problems)
    replicas = []
    for number in range(3):
        tp = TopicPartition("orders", PartitionIndex(number))
        path = tmp_path / str(tp)
        path.mkdir()
        (path / "00000000000000000000.log").touch()
        directory = PartitionDirectory(FileCache(disk, 10), str(path), tp, state)
        directory.failed(PermissionError(errno.EACCES, "Permission denied"), 0)
        opened = SimpleNamespace(offline_because=None, log=SimpleNamespace(directory=directory))
        replicas.append(SimpleNamespace(partition=tp, replica_log=opened))
    assert len(list(problems)) == 3
    directories: Any = SimpleNamespace(usable=list)
    store: Any = SimpleNamespace(full_errors=0)
    given: Any = replicas
    asyncio.run(ProblemWatch(problems, directories, given, store).look())
    assert list(problems) == []
    assert disk.threads
    assert threading.main_thread().name not in disk.threads
