import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.metadata.worlds import EmbeddedWorld, MemoryWorld, World, ZookeeperWorld
from tests.zookeeper import running_zookeeper, why_unavailable

Scenario = Callable[[World], Awaitable[None]]
Run = Callable[[Scenario], None]


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a ZooKeeper server for all tests."""
    reason = why_unavailable()
    if reason:
        pytest.skip(reason)
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as address:
        yield address


@pytest.fixture(
    params=["memory", "embedded", pytest.param("zookeeper", marks=pytest.mark.zookeeper)]
)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a scenario with a new store, once for each kind of store."""
    kind = request.param
    address = request.getfixturevalue("zookeeper") if kind == "zookeeper" else ""

    async def play(scenario: Scenario) -> None:
        world: World
        if kind == "memory":
            world = MemoryWorld()
        elif kind == "embedded":
            world = EmbeddedWorld(tmp_path)
        else:
            world = ZookeeperWorld(address)
        if getattr(scenario, "needs_cut", False) and not world.can_disconnect:
            pytest.skip("a store in the same process cannot be disconnected")
        try:
            await scenario(world)
        finally:
            await world.close()

    return lambda scenario: asyncio.run(play(scenario))


def needs_cut(scenario: Scenario) -> Scenario:
    scenario.needs_cut = True  # type: ignore[attr-defined]
    return scenario
