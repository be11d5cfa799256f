"""The fuzzer itself: its cases are known, its findings reported, and a short run is clean."""

import os
import re
from pathlib import Path
from uuid import UUID

import pytest

from fuzz.broker import BrokerProcess
from fuzz.cases import Case, make_case
from fuzz.run import Report, Run, run
from fuzz.simulated import fuzz_simulated
from fuzz.world import TOPICS, World
from suwi.wire.versions import APIS, ApiKey

SECONDS = 4
SERVED = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
)


def a_world() -> World:
    world = World({name: UUID(int=number) for number, name in enumerate(TOPICS, 1)})
    world.serve([(key, APIS[key].min_version, APIS[key].max_version) for key in SERVED])
    return world


def cases(seed: int, count: int) -> list[Case]:
    world = a_world()
    return [make_case(seed, number, world) for number in range(count)]


def test_a_seed_makes_the_same_cases_every_time() -> None:
    assert cases(1, 300) == cases(1, 300)
    assert cases(1, 300) != cases(2, 300)


def test_the_cases_reach_every_api_version_well_formed_and_broken() -> None:
    wanted = {(APIS[key].name, version) for key, version in a_world().served}
    well_formed: set[tuple[str, int]] = set()
    broken: set[tuple[str, int]] = set()
    for case in cases(3, 4000):
        named = {(name, int(version)) for name, version in re.findall(r"(\w+) v(\d+)", case.what)}
        (well_formed if case.answers is not None else broken).update(named)
    assert well_formed >= wanted
    assert broken >= wanted


@pytest.mark.slow
def test_a_broker_under_attack_serves_an_honest_client(tmp_path: Path) -> None:
    async def work(run: Run) -> Report:
        return await run.fuzz(SECONDS, cases_min=30)

    report = run(2026, str(tmp_path), work, connections=6)
    assert not report.findings, "\n\n".join(report.findings)
    assert report.cases > 20
    assert report.checked_records > 20


@pytest.mark.parametrize("seed", range(2))
def test_a_simulated_broker_under_attack_serves_an_honest_client(seed: int) -> None:
    report = fuzz_simulated(seed, cases=800)
    assert not report.findings, "\n\n".join(report.findings)
    assert report.checked_records > 100


def test_what_alarms_is_found_in_a_log_with_the_peer_that_caused_it(tmp_path: Path) -> None:
    broker = BrokerProcess(str(tmp_path))
    log = Path(broker.log_path)
    log.write_text(
        "2026-01-01T00:00:00.000+00:00 info net: connection closed peer=127.0.0.1:1 reason=x\n"
        "2026-01-01T00:00:00.000+00:00 error net: request failed peer=127.0.0.1:4711\n"
        "Traceback (most recent call last):\n"
        "ZeroDivisionError\n"
        "2026-01-01T00:00:00.000+00:00 info net: listening\n"
        "an unfinished li"
    )
    ((port, excerpt),) = broker.alarms()
    assert port == 4711
    assert excerpt.endswith("ZeroDivisionError")
    with log.open("a") as more:
        more.write("ne\nFatal Python error: Aborted\n")
    ((port, excerpt),) = broker.alarms()
    assert port is None
    assert excerpt == "Fatal Python error: Aborted"
    assert not broker.alarms()


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
def test_a_broker_that_grows_too_large_is_a_finding_that_can_be_replayed(tmp_path: Path) -> None:
    async def work(run: Run) -> Report:
        return await run.fuzz(SECONDS)

    report = run(5, str(tmp_path), work, connections=2, memory_bytes_max=1 << 20)
    (finding,) = report.findings
    assert "MiB of memory" in finding
    assert re.search(r"python -m fuzz --seed 5( --case \d+)+", finding)
