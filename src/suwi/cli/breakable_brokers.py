"""Brokers of one process that can be broken: `suwi serve --brokers N --faults`.

Each runs as if it had a process of its own, as in the test kit: it can be killed, paused and
started again, its links cut and slowed, its power lost, its disk full. `suwi cluster kill` and its
neighbours, with the data directory, and the console do it (`local_cluster/served_brokers.py`). The
data are those of `serve --brokers N` without faults, the time limits are short as in the test kit.
"""

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from suwi.cli.broker_process import (
    ServeFailed,
    console_process,
    directory_in_use,
    failures_told,
    refuse_other_layout,
    write_at_once,
)
from suwi.env import Env
from suwi.env.tasks import cancel_and_wait
from suwi.local_cluster.served_brokers import HOLD_S, listening
from suwi.metadata.embedded import StoreInUse
from suwi.model.broker_config import BrokerConfig
from suwi.model.config_kinds import BadConfig
from suwi.model.listener_config import parse_listeners
from suwi.testing.brokers import Brokers
from suwi.testing.loop import ClusterLoop

_SLOW_MS = 100.0
"""As `suwi cluster slow`, which also limits the rate."""
_SESSION_S = 3.0
_LOOPBACK = ("127.0.0.1", "localhost")


def run_breakable(
    env: Env,
    config: BrokerConfig,
    brokers: int,
    console: Sequence[str] | None,
    *,
    link_delay_ms: float = 0.0,
) -> None:
    """Returns when they were stopped. `link_delay_ms`: what one broker sends takes so long to reach
    another. Raises BadConfig, ServeFailed."""
    (listener, *others) = parse_listeners(config)
    if others or listener.protocol != "PLAINTEXT" or listener.host not in _LOOPBACK:
        raise BadConfig("--faults: one listener on 127.0.0.1, without TLS and SASL")
    if len(config.log_dirs) > 1:
        raise BadConfig("--faults works with one data directory")
    own = ("listeners", "advertised.listeners", "log.dirs", "log.dir", "node.id", "broker.id")
    settings = {key: value for key, value in config.given.items() if key not in own}
    (directory,) = config.log_dirs
    refuse_other_layout(env, directory, f"{directory}/1")
    try:
        with failures_told(), asyncio.Runner(loop_factory=ClusterLoop) as runner:
            place = directory, listener.port
            runner.run(_run(env, place, settings, brokers, console, link_delay_ms))
    except StoreInUse:
        raise directory_in_use(directory) from None
    except RuntimeError as error:  # A broker has ended while it was starting.
        raise ServeFailed(str(error)) from error


async def _run(
    env: Env,
    place: tuple[str, int],
    settings: Mapping[str, str],
    count: int,
    console: Sequence[str] | None,
    link_delay_ms: float,
) -> None:
    """`place`: the data directory, and the first port."""
    directory, port = place
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ClusterLoop)
    env.disk.make_dirs(directory)
    brokers = Brokers(loop, directory, count, settings, _SESSION_S, first_port=port)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    faults = _Faults(brokers)
    try:
        await brokers.start()
        loop.network.delay_ms = (link_delay_ms, link_delay_ms)
        options = None if console is None else (*console, "--faults", directory)
        addresses = [brokers.address(number) for number in brokers.all]
        async with listening(directory, env, faults.act):
            write_at_once(
                sys.stdout,
                f"brokers {', '.join(map(str, brokers.all))} serve at {', '.join(addresses)}\n"
                f"data in       {directory}\n"
                f"break them    suwi cluster kill 1 --data {directory}, and pause, cut, slow, …\n"
                "stop with     Ctrl-C\n",
            )
            async with console_process(addresses, options):
                await stop.wait()
    finally:
        await faults.end()
        loop.network.delay_ms = (0.0, 0.0)  # Brokers that stop tell each other.
        await brokers.stop(cleanly=True)


class _Faults:
    """What commands and the console can do to the brokers."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._held: asyncio.Task[None] | None = None
        """Lets go of what is held."""

    async def act(self, fault: str, asked: Mapping[str, Any]) -> None:
        """Raises ValueError, RuntimeError."""
        brokers, number, other = self._brokers, asked.get("broker", 0), asked.get("other", 0)
        if fault not in ("heal", "hold"):
            brokers.node(number)
        match fault:
            case "kill" | "pause" | "resume" | "restart" | "power_loss" | "fill_disk" | "free_disk":
                await getattr(brokers, fault)(number)
            case "isolate":
                await brokers.partition([number], [each for each in brokers.all if each != number])
            case "cut":
                await brokers.cut(number, other)
                if not asked.get("one_way"):
                    await brokers.cut(other, number)
            case "slow":
                await brokers.slow(number, _SLOW_MS)
            case "hold":
                await self.end()
                await brokers.partition(*[[each] for each in brokers.all])
                self._held = asyncio.ensure_future(self._let_go())  # owner: `end`
            case "heal":
                await self.end()
                await brokers.heal()
            case _:
                raise ValueError(f"there is no fault {fault!r}")

    async def _let_go(self) -> None:
        await asyncio.sleep(HOLD_S)
        await self._brokers.heal()

    async def end(self) -> None:
        await cancel_and_wait(self._held)
