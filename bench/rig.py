"""What a job works with: the plan, the brokers under comparison, and those that run already."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from bench.clients import Metrics
from bench.clients.java import JavaClient, java_client
from bench.homes import home
from bench.plan import Plan
from bench.servers import SUWI, Server, bare_reader, mock_cluster, temporary_directory

Run = Callable[[], Metrics]


@dataclass(frozen=True)
class Rig:
    """`brokers` are the names under comparison; `servers`, `mock` and `java` run while a job runs.

    `mock` is None if no baselines are wanted: neither the mock cluster nor any bound.
    """

    plan: Plan
    brokers: tuple[str, ...]
    work_dir: Path
    suwi_data: Path
    servers: dict[str, Server]
    mock: Server | None
    java: JavaClient | None
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new_topic(self) -> str:
        return f"bench-{next(self._numbers)}"

    def for_each_broker(self, make_run: Callable[[Server], Run]) -> dict[str, Run]:
        return {name: make_run(server) for name, server in self.servers.items()}

    def bare_reader(self, topic: str) -> AbstractContextManager[Server | None]:
        """A server for this topic of Suwi that does the least that any server must do."""
        if self.mock is None:
            return nullcontext()
        return bare_reader(self.servers[SUWI], self.suwi_data / f"{topic}-0")


@contextmanager
def rig(
    plan: Plan, brokers: tuple[str, ...], *, with_java: bool, with_yardsticks: bool = True
) -> Iterator[Rig]:
    """One broker of each kind, the mock cluster and a JVM for Java clients, all running."""
    with ExitStack() as stack:
        work_dir = stack.enter_context(temporary_directory())
        homes = {name: stack.enter_context(home(name)) for name in brokers}
        servers = {name: home.start() for name, home in homes.items()}
        mock = stack.enter_context(mock_cluster()) if with_yardsticks else None
        java = stack.enter_context(java_client()) if with_java else None
        yield Rig(plan, brokers, work_dir, homes[SUWI].data, servers, mock, java)
