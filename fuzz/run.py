"""One run: a broker, hostile peers, an honest client and the checks of all of it.

`Run.fuzz` attacks for some time, `Run.replay` sends chosen cases only. Afterwards the broker is
killed and started again: a log that hostile peers wrote must recover, and the honest client's
records must still be there.
Invariant: every failure is in `findings`, with the cases that may have caused it.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from fuzz.attack import Attacker
from fuzz.batches import most_tiny_records
from fuzz.broker import BrokerFailed, BrokerProcess
from fuzz.cases import Case, make_case
from fuzz.checker import Checker
from fuzz.world import CHECKED, TOPICS, TURNING, World, prepare
from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.model.ids import NO_TOPIC_ID
from suwi.wire.versions import ApiKey

_WATCH_S: Final = 0.25
_HEALTH_S: Final = 0.5
_JANITOR_S: Final = 2.0
_UNANSWERED_S_MAX: Final = 60.0
"""A health request must be answered within this time: long, because the machine may be busy."""
_FINDINGS_MAX: Final = 10
_METADATA_VERSION: Final = 12
_NO_BROKER_SETTINGS: Final = {
    "resources": [{"resource_type": 4, "resource_name": name, "configs": []} for name in ("", "0")],
    "validate_only": False,
}


@dataclass(slots=True)
class Report:
    cases: int = 0
    seconds: float = 0.0
    memory_start_bytes: int = 0
    memory_peak_bytes: int = 0
    memory_end_bytes: int = 0
    health_slowest_s: float = 0.0
    checked_records: int = 0
    findings: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        lines = [f"attack         {self.cases} cases in {self.seconds:.0f} s"]
        if self.memory_start_bytes:
            sizes = (self.memory_start_bytes, self.memory_peak_bytes, self.memory_end_bytes)
            start, peak, end = (size_bytes >> 20 for size_bytes in sizes)
            lines.append(f"memory         {start} MiB at first, {peak} at most, {end} at last")
            lines.append(f"health         slowest answer {self.health_slowest_s * 1000:.0f} ms")
        lines.append(f"honest client  {self.checked_records} records came back")
        return lines


class Run:
    def __init__(
        self, seed: int, directory: str, *, connections: int = 8, memory_bytes_max: int
    ) -> None:
        self.seed = seed
        self.report = Report()
        self._broker = BrokerProcess(directory)
        self._world = World()
        self._checker = Checker(lambda: time.time_ns() // 1_000_000)
        self._attackers = [
            Attacker(lambda: ("127.0.0.1", self._broker.port), self._found_by)
            for _ in range(connections)
        ]
        self._numbers = itertools.count()
        self._memory_bytes_max = memory_bytes_max
        self._over = asyncio.Event()
        self._distinct: set[str] = set()

    # -- the two entry points

    async def fuzz(self, seconds: float, cases_min: int = 0) -> Report:
        return await self._attacked(self._attack_for(seconds, cases_min))

    async def replay(self, numbers: Iterable[int]) -> Report:
        return await self._attacked(self._send_only(list(numbers)))

    async def _attacked(self, attack: Coroutine[Any, Any, None]) -> Report:
        most_tiny_records()
        try:
            await self._broker.start()
            await self._prepare()
            self.report.memory_start_bytes = self._broker.memory_bytes()
            await self._with_watchers(attack)
            if not self.report.findings:
                await self._aftermath()
        except (AssertionError, BrokerFailed, OSError) as error:
            self._found(f"{type(error).__name__}: {error}")
        finally:
            attack.close()
            for attacker in self._attackers:
                attacker.close()
            self._look_at_log()
            await self._broker.kill()
        self.report.cases = sum(attacker.sent for attacker in self._attackers)
        self.report.checked_records = self._checker.consumed
        return self.report

    # -- before

    async def _prepare(self) -> None:
        client = await self._connect()
        await prepare(client, self._world)
        await client.close()

    async def _connect(self) -> PeerConnection:
        return await PeerConnection.open("127.0.0.1", self._broker.port, client_id="honest")

    # -- while

    async def _attack_for(self, seconds: float, cases_min: int) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        def goes_on() -> bool:
            is_enough = sum(attacker.sent for attacker in self._attackers) >= cases_min
            is_over = is_enough and loop.time() >= began_s + seconds
            return not is_over and not self._over.is_set()

        async def attack(attacker: Attacker) -> None:
            while goes_on():
                await attacker.run(make_case(self.seed, next(self._numbers), self._world))

        await asyncio.gather(*(attack(attacker) for attacker in self._attackers))
        self.report.seconds = loop.time() - began_s

    async def _send_only(self, numbers: list[int]) -> None:
        attacker = self._attackers[0]
        for number in numbers:
            case = make_case(self.seed, number, self._world)
            await attacker.run(case)
        await asyncio.sleep(1)  # failures that appear late are to be seen

    async def _with_watchers(self, attack: Coroutine[Any, Any, None]) -> None:
        """Run the attack together with the honest client and the monitors."""
        producing, consuming = await self._connect(), await self._connect()
        watchers = [
            asyncio.create_task(self._guarded(work))
            for work in (
                self._checker.produce(producing),
                self._checker.consume(consuming),
                self._watch(),
                self._ask_for_health(),
                self._clean_up(),
            )
        ]
        attacking = asyncio.create_task(attack)
        over = asyncio.create_task(self._over.wait())
        tasks = [attacking, over, *watchers]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for connection in (producing, consuming):
            connection.abort()
        for failure in ended:
            if isinstance(failure, Exception):
                raise failure

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ConnectionLost as error:
            self._found(f"an honest connection was lost: {error}")
        except (AssertionError, OSError) as error:
            self._found(f"{type(error).__name__}: {error}")

    async def _watch(self) -> None:
        """Check memory, the log, and whether the process is running."""
        report = self.report
        while True:
            await asyncio.sleep(_WATCH_S)
            self._look_at_log()
            if self._broker.exit_code is not None:
                self._found(f"the broker ended with code {self._broker.exit_code}")
                self._over.set()
                return
            memory_bytes = self._broker.memory_bytes()
            report.memory_peak_bytes = max(report.memory_peak_bytes, memory_bytes)
            if memory_bytes > self._memory_bytes_max:
                self._found(f"the broker takes {memory_bytes >> 20} MiB of memory")
                self._over.set()

    def _look_at_log(self) -> None:
        for port, excerpt in self._broker.alarms():
            suspects = [
                case
                for attacker in self._attackers
                for used, case in attacker.ports
                if port is not None and used == port
            ]
            self._found(f"in the broker's log:\n{excerpt}", suspects[-2:])

    async def _ask_for_health(self) -> None:
        """A new connection and a request must be served within a long time limit."""
        loop = asyncio.get_running_loop()
        while True:
            asked_s = loop.time()
            try:
                async with asyncio.timeout(_UNANSWERED_S_MAX):
                    client = await self._connect()
                    await client.call(ApiKey.API_VERSIONS, 0, {})
                    client.abort()
            except TimeoutError:
                self._broker.dump_stacks()
                self._found(f"no answer to a health request for {_UNANSWERED_S_MAX:.0f} s")
                await asyncio.sleep(1)
                self._over.set()
                return
            self.report.health_slowest_s = max(self.report.health_slowest_s, loop.time() - asked_s)
            await asyncio.sleep(_HEALTH_S)

    async def _clean_up(self) -> None:
        """Delete topics with mutated names and settings of the broker; change a topic's policy.

        A broker may have many topics, and may be configured to accept no records; but neither is
        useful here.
        """
        known = {*TOPICS, CHECKED}
        client = await self._connect()
        for policy in itertools.cycle(("compact", "delete")):
            await asyncio.sleep(_JANITOR_S)
            everything = {"topics": None, "include_topic_authorized_operations": False}
            answer = await client.call(ApiKey.METADATA, _METADATA_VERSION, everything)
            strays = [topic.topic_id for topic in answer.topics if topic.name not in known]
            topics = [{"name": None, "topic_id": stray or NO_TOPIC_ID} for stray in strays]
            await client.call(ApiKey.DELETE_TOPICS, 6, {"topics": topics, "timeout": 30_000})
            await client.call(ApiKey.ALTER_CONFIGS, 2, _NO_BROKER_SETTINGS)
            await client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, _turned(policy))

    # -- after

    async def _aftermath(self) -> None:
        for attacker in self._attackers:
            attacker.close()
        await self._read_everything()
        self.report.memory_end_bytes = self._broker.memory_bytes()
        await self._broker.kill()
        await self._broker.start()
        await self._read_everything()
        await self._broker.stop()

    async def _read_everything(self) -> None:
        client = await self._connect()
        await self._checker.read_all(client)
        self._checker.consumed = self._checker.produced
        await client.close()

    # -- findings

    def _found_by(self, what: str, case: Case) -> None:
        self._found(what, [case])

    def _found(self, what: str, suspects: Iterable[Case] = ()) -> None:
        """Record a finding, once for each kind, with the cases to replay."""
        if self._over.is_set():
            return  # Later findings are consequences of the end.
        # Numbers differ from case to case; the rest of the last line is the kind.
        kind = "".join(c for c in what.strip().splitlines()[-1] if not c.isdigit())
        if kind in self._distinct:
            return
        self._distinct.add(kind)
        cases = list(suspects) or [case for a in self._attackers for case in list(a.recent)[-3:]]
        lines = [what, *(f"  case {case.number}: {case.what}" for case in cases)]
        lines.append("replay with")
        lines.append("  " + replay_command(self.seed, [case.number for case in cases]))
        self.report.findings.append("\n".join(lines))
        if len(self.report.findings) >= _FINDINGS_MAX:
            self._over.set()


def _turned(policy: str) -> dict[str, Any]:
    config = {"name": "cleanup.policy", "config_operation": 0, "value": policy}
    resource = {"resource_type": 2, "resource_name": TURNING, "configs": [config]}
    return {"resources": [resource], "validate_only": False}


def replay_command(seed: int, numbers: Iterable[int]) -> str:
    cases = "".join(f" --case {number}" for number in sorted(set(numbers)))
    return f"python -m fuzz --seed {seed}{cases}"


def run(
    seed: int,
    directory: str,
    work: Callable[[Run], Coroutine[Any, Any, Report]],
    *,
    connections: int = 8,
    memory_bytes_max: int = 1 << 30,
) -> Report:
    """Create a run in `directory` and pass it to `work`."""

    async def main() -> Report:
        return await work(
            Run(seed, directory, connections=connections, memory_bytes_max=memory_bytes_max)
        )

    return asyncio.run(main())
