"""Several log directories: partitions are spread over them, and a failed one affects no other."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from suwi.client.connection import PeerConnection
from suwi.log.log_directory import LogDirectory
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.sim import Simulation
from suwi.wire.versions import ApiKey
from tests.broker.simulated import SimBroker, create_topic, fetch_once, produce, read_all
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi

DIRS = ("/d1", "/d2", "/d3")
TOPICS = tuple(f"topic-{n}" for n in range(6))
STORAGE_ERROR = 56


async def topics_by_directory(client: PeerConnection) -> dict[str, list[str]]:
    """The topics in each directory that is online."""
    answer = await client.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})
    return {
        directory.log_dir: sorted(topic.name for topic in directory.topics)
        for directory in answer.results
        if not directory.error_code
    }


async def unusable(client: PeerConnection) -> list[str]:
    answer = await client.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})
    return [d.log_dir for d in answer.results if d.error_code == STORAGE_ERROR]


Scenario = Callable[[SimBroker, PeerConnection], Coroutine[Any, Any, None]]


def run(scenario: Scenario, **settings: str) -> None:
    simulation = Simulation(0)

    async def main() -> None:
        broker = SimBroker(simulation, log_dirs=",".join(DIRS), log_retention_ms="-1", **settings)
        await broker.start()
        client = await broker.connect()
        for topic in TOPICS:
            await create_topic(client, topic)
            assert (await produce(client, topic, [topic.encode()])).error_code == 0
        await scenario(broker, client)

    simulation.run(main())


async def assert_unchanged(before: dict[str, list[str]], broker: SimBroker) -> None:
    """Every partition is in the same directory as before, with the same records."""
    client = await broker.connect()
    assert await topics_by_directory(client) == before
    for topic in TOPICS:
        assert [r.value for r in await read_all(client, topic)] == [topic.encode()]


def test_partitions_are_spread_evenly_and_stay_where_they_are() -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        before = await topics_by_directory(client)
        assert [len(before[path]) for path in DIRS] == [2, 2, 2]
        await broker.stop()
        await broker.start()
        await assert_unchanged(before, broker)

    run(scenario)


@pytest.mark.parametrize("operation", ["write", "sync", "*"])
def test_a_failed_log_directory_takes_only_its_own_partitions_offline(operation: Any) -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        failing, *others = DIRS
        lost = (await topics_by_directory(client))[failing]
        broker.machine.disk.faults.fail(operation, errno.EIO, path=f"{failing}/*", times=None)
        for topic in lost:  # A full segment is synced by the log manager.
            for _ in range(3):
                await produce(client, topic, [b"x" * 500])
        await asyncio.sleep(120)
        for topic in TOPICS:
            code = STORAGE_ERROR if topic in lost else 0
            assert (await produce(client, topic, [b"after"])).error_code == code, topic
            assert (await fetch_once(client, topic, 0)).error_code == code, topic
        assert await unusable(client) == [failing]
        # New topics go to the other directories.
        for n in range(4):
            await create_topic(client, f"new-{n}")
            assert (await produce(client, f"new-{n}", [b"x"])).error_code == 0
        spread = await topics_by_directory(client)
        assert list(spread) == others
        assert all(len(topics) == 4 for topics in spread.values())

    run(scenario, log_segment_bytes="1024")


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_directory_that_cannot_be_opened_stays_offline_until_the_next_start(
    is_clean: bool,
) -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        failing = DIRS[1]
        before = await topics_by_directory(client)
        if is_clean:
            await broker.stop()
        else:
            broker.kill()
        fault = broker.machine.disk.faults.fail("*", errno.EIO, path=f"{failing}*", times=None)
        await broker.start()
        client = await broker.connect()
        assert await unusable(client) == [failing]
        for topic in TOPICS:
            is_lost = topic in before[failing]
            code = (await fetch_once(client, topic, 0)).error_code
            assert code == (STORAGE_ERROR if is_lost else 0), topic
        # Its partitions are not created again, empty, in another directory.
        assert await topics_by_directory(client) == {
            path: before[path] for path in DIRS if path != failing
        }
        await broker.stop()
        broker.machine.disk.faults.remove(fault)
        await broker.start()
        await assert_unchanged(before, broker)

    run(scenario)


def test_a_broker_with_an_unusable_log_directory_serves_from_the_other(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    dirs = f"{tmp_path / 'good'},{tmp_path / 'file' / 'bad'}"
    with BrokerProcess(tmp_path / "log", options=["--data", dirs]) as broker:
        suwi = Suwi(broker.address)
        suwi.ok("topics", "create", "fruit", "-p", 4)
        for partition in range(4):
            suwi.run("produce", "fruit", "-p", partition, stdin=b"apple\n")
        assert suwi.ok("consume", "fruit", "--from-beginning", "--no-follow") == "apple\n" * 4
        assert "kind=directory-offline" in broker.log
        assert "Traceback" not in broker.log
        broker.stop()
    assert len(list((tmp_path / "good").glob("fruit-*"))) == 4


def test_a_topic_recreated_during_a_high_watermark_checkpoint_has_its_own_value() -> None:
    """A former bug: the values were read for all directories at once, but written one directory
    after the other."""

    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        assert broker.broker is not None
        log_manager = broker.broker.log_manager
        second = broker.broker.directories.usable()[1]
        topic = (await topics_by_directory(client))[second.path][0]
        await produce(client, topic, [b"2", b"3"])
        write = log_manager._in_thread

        async def slowly(directory: LogDirectory, job: Callable[[], None]) -> None:
            if directory is not second:
                gone = {"topics": [{"name": topic, "topic_id": None}], "timeout": 30_000}
                await client.call(ApiKey.DELETE_TOPICS, 6, gone)
                await create_topic(client, topic)
                await produce(client, topic, [b"new"])
                log_manager._in_thread = write  # type: ignore[method-assign]
            await write(directory, job)

        log_manager._in_thread = slowly  # type: ignore[method-assign]
        await log_manager._sync_dirty_partitions()
        await log_manager._write_high_watermarks()
        assert topic in (await topics_by_directory(client))[second.path]
        assert (
            second.checkpoints.high_watermarks.get(TopicPartition(topic, PartitionIndex(0)), 0) <= 1
        )

    run(scenario)
