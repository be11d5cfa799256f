"""The same cases against a simulated broker: one process, no sockets, no disk, no real time.

More cases in less time, and repeatable: the same seed gives the same order of events. `fuzz.run`
covers what only a process shows: memory and hangs.
"""

import asyncio
import logging
import time
from typing import Final

from fuzz.attack import Attacker
from fuzz.cases import Case, make_case
from fuzz.checker import Checker
from fuzz.run import Report
from fuzz.world import World, prepare
from suwi.broker.broker import Broker
from suwi.client.connection import PeerConnection
from suwi.metadata.memory import MemoryStore
from suwi.model.broker_config import parse_broker_config
from suwi.sim import Simulation

_HOST: Final = "broker"
_PORT: Final = 9092
_TOGETHER: Final = 4
"""Hostile peers at once."""


class _Alarms(logging.Handler):
    """Records what a process would have logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


def fuzz_simulated(seed: int, cases: int) -> Report:
    """Send this many cases, then check the honest client's records."""
    report = Report()
    alarms = _Alarms()
    logging.getLogger().addHandler(alarms)
    began_s = time.monotonic()
    simulation = Simulation(seed)
    try:
        simulation.run(_scenario(simulation, seed, cases, report, alarms))
    except Exception as error:
        report.findings.append(f"{type(error).__name__}: {error}\n{_command(seed, cases)}")
    finally:
        logging.getLogger().removeHandler(alarms)
    report.seconds = time.monotonic() - began_s
    return report


async def _scenario(
    simulation: Simulation, seed: int, cases: int, report: Report, alarms: _Alarms
) -> None:
    machine = simulation.machine(_HOST)
    properties = {"listeners": f"PLAINTEXT://{_HOST}:{_PORT}", "log.dirs": "/data"}
    store = MemoryStore(simulation.random.stream("store"))
    broker = Broker(machine.start(), parse_broker_config(properties).config, store.view())
    await machine.spawn(broker.start())
    world = World()
    client = await PeerConnection.open(_HOST, _PORT)
    await prepare(client, world)
    checker = Checker(machine.clock.now_ms)
    producing = asyncio.ensure_future(checker.produce(client))

    def found(what: str, case: Case) -> None:
        report.findings.append(
            f"{what}\n  case {case.number}: {case.what}\n{_command(seed, cases)}"
        )

    attackers = [Attacker(lambda: (_HOST, _PORT), found) for _ in range(_TOGETHER)]
    for first in range(0, cases, _TOGETHER):
        together = [make_case(seed, first + n, world) for n in range(_TOGETHER)]
        await asyncio.gather(*(a.run(case) for a, case in zip(attackers, together, strict=True)))
        for line in alarms.lines:
            for case in together:
                found(line, case)
        if report.findings or producing.done():
            break
    report.cases = sum(attacker.sent for attacker in attackers)
    for attacker in attackers:
        attacker.close()
    if producing.done():
        await producing
    producing.cancel()
    await checker.read_all(await PeerConnection.open(_HOST, _PORT))
    report.checked_records = checker.produced


def _command(seed: int, cases: int) -> str:
    return f"replay with\n  python -m fuzz --simulated --seed {seed} --cases {cases}"
