"""Damaged and missing segments of one broker: found by the scrubber or when the log is opened."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.env.problems import Problem
from suwi.log import names
from suwi.model.ids import Offset
from suwi.sim import Simulation
from tests.broker.simulated import (
    DATA,
    SimBroker,
    create_topic,
    delete_topic,
    fetch_once,
    produce,
    wait_until_up,
)
from tests.broker.test_simulated_cluster import until

SCRUBBING = {
    "log_scrubber_io_max_bytes_per_second": "100000",
    "log_scrubber_interval_ms": "1000",
}
RECORDS = 30


async def filled(broker: SimBroker) -> PeerConnection:
    """A topic with thirty batches, ten in each closed segment."""
    await broker.start()
    client = await broker.connect()
    await create_topic(client, "orders", segment_bytes="1720", retention_ms="-1")
    for number in range(RECORDS + 1):
        produced = await produce(client, "orders", [b"%0100d" % number])
        assert produced.error_code == ErrorCode.none
    assert segments_of(broker) == [0, 10, 20, 30]
    return client


def path_of(base_offset: int, suffix: str = names.LOG) -> str:
    return f"{DATA}/orders-0/{names.offset_name(Offset(base_offset))}{suffix}"


def segments_of(broker: SimBroker) -> list[int]:
    found = broker.machine.disk.list_dir(f"{DATA}/orders-0")
    return [int(name[:20]) for name in found if name.endswith(names.LOG)]


def damage(broker: SimBroker, offset: int) -> None:
    """Change a byte of the value of one record in a closed segment."""
    disk, path = broker.machine.disk, path_of(offset // 10 * 10)
    position = disk.read_bytes(path).index(b"%0100d" % offset) + 50
    disk.overwrite(path, b"\xff", position)


def problems_of(broker: SimBroker) -> list[Problem]:
    assert broker.broker is not None
    return list(broker.broker.problems)


async def offsets_served(client: PeerConnection) -> dict[int, int | None]:
    """For each offset the error of a fetch from there."""
    served: dict[int, int | None] = {}
    for offset in range(RECORDS + 1):
        fetched = await fetch_once(client, "orders", offset)
        served[offset] = fetched.error_code
        if not fetched.error_code:
            assert fetched.records
    return served


def run(scenario, **settings: str) -> None:  # type: ignore[no-untyped-def]
    simulation = Simulation(1)
    simulation.run(scenario(SimBroker(simulation, **settings)))


def test_bytes_changed_in_a_closed_segment_are_found_and_only_they_are_refused() -> None:
    async def scenario(broker: SimBroker) -> None:
        client = await filled(broker)
        damage(broker, 15)
        await until(lambda: bool(problems_of(broker)))
        [problem] = problems_of(broker)
        assert problem.kind.label == "damaged-batch"
        assert problem.place == "orders-0 offsets 15-15"
        assert path_of(10) in problem.reason
        served = await offsets_served(client)
        assert [n for n, code in served.items() if code] == [15]
        assert served[15] == ErrorCode.kafka_storage_error
        assert (await produce(client, "orders", [b"x"])).error_code == ErrorCode.none
        await asyncio.sleep(10)
        assert broker.broker is not None
        assert broker.broker.log_manager.log_scrubber.damages_found == 1
        await delete_topic(client, "orders")
        await until(lambda: not problems_of(broker))

    run(scenario, **SCRUBBING)


def test_a_middle_segment_that_is_gone_is_found_when_the_log_is_opened() -> None:
    """Earlier consumers skipped its records silently."""

    async def scenario(broker: SimBroker) -> None:
        await filled(broker)
        await broker.stop()
        for suffix in (names.LOG, names.OFFSET_INDEX, names.TIME_INDEX):
            broker.machine.disk.remove(path_of(10, suffix))
        await broker.start()
        client = await wait_until_up(broker)
        assert problems_of(broker) == [], "a clean start opens no log"
        served = await offsets_served(client)
        assert [n for n, code in served.items() if code] == list(range(10, 20))
        [problem] = problems_of(broker)
        assert problem.place == "orders-0 offsets 10-19"

    run(scenario)


def test_the_scrubber_opens_a_log_that_nobody_reads() -> None:
    async def scenario(broker: SimBroker) -> None:
        await filled(broker)
        await broker.stop()
        damage(broker, 5)
        broker.machine.disk.remove(path_of(10))
        await broker.start()
        await until(lambda: len(problems_of(broker)) == 2)
        places = {problem.place for problem in problems_of(broker)}
        assert places == {"orders-0 offsets 5-5", "orders-0 offsets 10-19"}

    run(scenario, **SCRUBBING)


def test_scrubbing_reads_no_more_than_its_rate() -> None:
    async def scenario(broker: SimBroker) -> None:
        await filled(broker)
        assert broker.broker is not None
        scrubber = broker.broker.log_manager.log_scrubber
        await until(lambda: scrubber.scrubbed_bytes > 0)
        for _ in range(10):
            before, before_s = scrubber.scrubbed_bytes, asyncio.get_running_loop().time()
            await asyncio.sleep(20)
            spent_s = asyncio.get_running_loop().time() - before_s
            segment_bytes = 1720
            assert scrubber.scrubbed_bytes - before <= spent_s * 200 + segment_bytes

    run(
        scenario,
        log_scrubber_io_max_bytes_per_second="200",
        log_scrubber_interval_ms="1000",
    )


def test_a_read_error_that_does_not_return_is_no_damage() -> None:
    async def scenario(broker: SimBroker) -> None:
        await filled(broker)
        assert broker.broker is not None
        fault = broker.machine.disk.faults.fail("read", path=path_of(10))
        scrubber = broker.broker.log_manager.log_scrubber
        read = scrubber.scrubbed_bytes
        await until(lambda: scrubber.scrubbed_bytes > read + 3 * 1720)
        broker.machine.disk.faults.remove(fault)
        assert problems_of(broker) == []

    run(scenario, **SCRUBBING)


@pytest.mark.parametrize("offset", [15, 30])
def test_a_batch_that_a_reader_reads_again_and_again_is_checked(offset: int) -> None:
    """In a closed segment or in the active one, a week before the next pass."""

    async def scenario(broker: SimBroker) -> None:
        client = await filled(broker)
        await asyncio.sleep(60)
        damage(broker, offset)
        await asyncio.sleep(60)
        assert problems_of(broker) == []
        for _ in range(20):
            await fetch_once(client, "orders", offset)
            await fetch_once(client, "orders", 3)
            await fetch_once(client, "orders", offset)
        await until(lambda: bool(problems_of(broker)), limit_s=10)
        assert problems_of(broker)[0].place == f"orders-0 offsets {offset}-{offset}"
        assert (await fetch_once(client, "orders", offset)).error_code

    run(scenario, log_scrubber_io_max_bytes_per_second="100000")


def test_a_whole_batch_that_many_read_is_no_problem() -> None:
    async def scenario(broker: SimBroker) -> None:
        client = await filled(broker)
        for _ in range(100):
            await fetch_once(client, "orders", 15)
        await asyncio.sleep(10)
        assert problems_of(broker) == []

    run(scenario, log_scrubber_io_max_bytes_per_second="100000")


def test_a_damaged_header_is_checked_as_soon_as_a_reader_meets_it() -> None:
    async def scenario(broker: SimBroker) -> None:
        client = await filled(broker)
        disk, path = broker.machine.disk, path_of(10)
        at = disk.read_bytes(path).index(b"%0100d" % 15)
        header = disk.read_bytes(path).rindex((15).to_bytes(8, "big"), 0, at)
        disk.overwrite(path, b"\xff", header + 16)  # its magic number
        assert (await fetch_once(client, "orders", 15)).error_code == ErrorCode.corrupt_message
        # The length and the number of offsets are not damaged: the next batch is where they say.
        await until(lambda: "orders-0 offsets 15-15" in [p.place for p in problems_of(broker)])
        assert (await fetch_once(client, "orders", 15)).error_code == ErrorCode.kafka_storage_error
        for offset in (14, 16):
            assert (await fetch_once(client, "orders", offset)).error_code == ErrorCode.none

    run(scenario, log_scrubber_io_max_bytes_per_second="1", log_scrubber_interval_ms="604800000")
