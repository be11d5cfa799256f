"""The code paths for fetches of few and of many partitions give the same responses.

Two brokers that differ only in the code path get the same random requests, sessions and changes.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from hypothesis import event, given, settings
from hypothesis import strategies as st

from suwi.handlers import fetch, fetch_job
from suwi.handlers.fetch import Fetch
from suwi.handlers.fetch_session_cache import FetchSessionCache
from suwi.model.ids import Offset
from suwi.net.answers import Exclusive, Reply
from suwi.sim.random import SimRandom
from suwi.sim.simulation import Simulation
from suwi.wire.fetch_request import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    encode_fetch_request,
)
from suwi.wire.fetch_response import decode_fetch_response
from suwi.wire.versions import ApiKey
from tests.handlers.requests import request_of
from tests.handlers.world import EPOCHS, HERE, OTHER, World, followed, led, sent

TOPICS = {"a": [led(), led(), led(OTHER)], "b": [led(OTHER), followed()], "c": [led()]}
VERSIONS = (4, 6, 9, 11, 12, 13, 15, 18)
PATIENCE_MS = 500

Event = tuple[str, Any]

AT_THE_END = -7
LED = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0)]
FOLLOWED = [("a", 2), ("b", 0)]


async def settle() -> None:
    """Until nothing is ready: only then does simulated time advance."""
    await asyncio.sleep(1e-6)


class History:
    """Random events, mostly common ones: fetches that wait at the end of logs."""

    def __init__(self, seed: int, *, of_replica: bool) -> None:
        self._random = random.Random(seed)
        self._of_replica = of_replica

    def events(self, count: int) -> list[Event]:
        return [
            self._fetch() if self._chance(0.6 if self._of_replica else 0.4) else self._change()
            for _ in range(count)
        ]

    def _chance(self, chance: float) -> bool:
        return self._random.random() < chance

    def _mostly(self, usual: Any, *others: Any, chance: float = 0.1) -> Any:
        return self._random.choice(others) if self._chance(chance) else usual

    def _fetch(self) -> Event:
        is_replica = self._of_replica or self._chance(0.3)
        places = LED if not is_replica else FOLLOWED
        fewest = 0 if self._of_replica else 1
        asked = self._random.sample(places, self._random.randint(fewest, len(places)))
        asked += self._mostly([], [("b", 1)], [("a", 7)], [("nowhere", 0)])
        return "fetch", {
            "version": self._random.choice(VERSIONS[-2:] if self._of_replica else VERSIONS),
            "asked": {place: self._asked() for place in asked},
            "min_bytes": self._mostly(1, 0, 200, 300, chance=0.4),
            "max_bytes": self._mostly(1 << 20, 1, 150, 250, chance=0.3),
            "wait_ms": self._mostly(PATIENCE_MS, 0, chance=0.2),
            "isolation_level": self._random.choice([0, 1]),
            "session": self._mostly(
                "next", "none", "new", "strange", chance=0.1 if self._of_replica else 0.4
            ),
            "replica": is_replica,
            "forgotten": self._random.sample(LED, self._mostly(0, 1)),
        }

    def _asked(self) -> FetchPartition:
        return FetchPartition(
            0,
            self._mostly(-1, 0, 1, chance=0.03),
            self._mostly(AT_THE_END, 0, 1, 2, 9, chance=0.2),
            self._mostly(-1, 0, 3, chance=0.03),
            self._mostly(0, -1),
            self._mostly(1 << 20, 1, 100),
        )

    def _change(self) -> Event:
        place = self._random.choice(LED)
        kinds: list[Event] = [
            ("append", (place, self._random.randint(1, 3))),
            ("append", (place, self._random.randint(1, 3))),
            ("progress", (self._random.choice([("a", 2), ("b", 0)]), None)),
            ("wait", self._random.choice([0.0, 0.2, 1.0])),
            ("delete before", (place, None)),
            ("new epoch", (place, self._chance(0.7))),
            ("delete topic", None),
            ("leave isr", self._random.choice(FOLLOWED)),
            ("register again", None),
            ("wait", 6.0),
        ]
        return self._random.choices(kinds, weights=(8, 8, 8, 8, 2, 1, 0.3, 3, 2, 1))[0]


class Broker:
    """A broker that always uses one of the two code paths."""

    def __init__(self, large_from: int) -> None:
        self.world = World()
        for name, states in TOPICS.items():
            self.world.add(name, states)
        self.large_from = large_from
        self.handler = Fetch(
            self.world.replicas,
            FetchSessionCache(10, SimRandom(1)),
            1 << 20,
            self._synced,
        )
        self.answers: list[bytes | str] = []
        self.waited: list[bool] = []
        self.session = (0, 0, 0)  # version, id and next epoch
        self.settled_max = 0
        self.known: list[object] = []
        self.epoch = EPOCHS[OTHER]
        self._waiting: list[asyncio.Task[None]] = []

    async def _synced(self, timeout_s: float) -> None:
        await asyncio.sleep(0)

    async def play(self, history: list[Event]) -> None:
        for kind, facts in history:
            await getattr(self, "do_" + kind.replace(" ", "_"))(facts)
            await settle()  # The slower path has seen it too.
            self.known.append(self.known_of_followers())
        await asyncio.sleep(2 * PATIENCE_MS / 1000)
        for task in self._waiting:
            assert task.done()
            task.result()

    async def do_fetch(self, facts: dict[str, Any]) -> None:
        await self._idle()  # one at a time, as on one connection
        version, request = self._request(facts)
        body = encode_fetch_request(version, request)
        with (
            patch.object(fetch, "LARGE_PARTITIONS", self.large_from),
            patch.object(fetch_job, "SLICE_COST", 2),
        ):
            answer = self.handler(request_of(ApiKey.FETCH, version, body))
        number = len(self.answers)
        self.answers.append("waits")
        if isinstance(answer, Reply):
            self._take(number, version, answer)
        else:
            assert isinstance(answer, Exclusive)
            self._waiting.append(asyncio.ensure_future(self._await(number, version, answer)))
        # A fetch that only needs more iterations of the loop completes now.
        await settle()
        self.waited.append(not isinstance(self.answers[number], bytes))

    async def _idle(self) -> None:
        for task in self._waiting:
            await task

    async def _await(self, number: int, version: int, answer: Exclusive) -> None:
        with patch.object(fetch_job, "SLICE_COST", 2):
            reply = await answer.reply
        assert isinstance(reply, Reply)
        self._take(number, version, reply)

    def _take(self, number: int, version: int, reply: Reply) -> None:
        body = sent(reply)
        self.answers[number] = body
        self.world_is_unpinned()
        sessions = self.handler._sessions._sessions.values()
        self.settled_max = max([self.settled_max, *[len(each.settled) for each in sessions]])
        response = decode_fetch_response(version, body)
        if version >= 7 and response.session_id:
            _, session_id, epoch = self.session
            epoch = epoch + 1 if session_id == response.session_id else 1
            self.session = (version, response.session_id, epoch)

    def world_is_unpinned(self) -> None:
        assert not self.world.files._pins

    def _request(self, facts: dict[str, Any]) -> tuple[int, FetchRequest]:
        version = facts["version"]
        session_id, session_epoch = {"none": (0, -1), "new": (0, 0), "strange": (5, 5)}.get(
            facts["session"], (0, -1)
        )
        if facts["session"] == "next" and self.session[1]:
            version, session_id, session_epoch = self.session
        topics: dict[str, list[FetchPartition]] = {}
        for (name, index), asked in facts["asked"].items():
            if asked.fetch_offset == AT_THE_END:
                asked = asked._replace(fetch_offset=self._end_of(name, index))
            topics.setdefault(name, []).append(asked._replace(partition=index))
        id_of: Callable[[str], Any] = self.world.id_of
        is_replica = facts["replica"] and version >= 15
        return version, FetchRequest(
            facts["wait_ms"],
            facts["min_bytes"],
            facts["max_bytes"],
            [FetchTopic(name, id_of(name), asked) for name, asked in topics.items()],
            facts["isolation_level"],
            session_id,
            session_epoch,
            [ForgottenTopic(name, id_of(name), [index]) for name, index in facts["forgotten"]],
            "",
            OTHER if is_replica else -1,
            self.epoch if is_replica else -1,
        )

    def _end_of(self, name: str, index: int) -> int:
        partition = self.world.replicas._partitions.get((name, index))
        return partition.log.end_offset if partition is not None else 0

    # -- changes while a fetch waits -------------------------------------------------------------

    async def do_append(self, facts: Any) -> None:
        (name, index), count = facts
        partition = self.world.replicas._led.get((name, index))
        if partition is not None:
            self.world.append(name, index, *[b"v" * 50] * count)

    async def do_progress(self, facts: Any) -> None:
        partition = self.world.replicas._led.get(facts[0])
        if partition is not None:
            end = partition.log.end_offset
            partition.leader_replica.record_progress(
                OTHER, end, partition.log.start_offset, EPOCHS[OTHER]
            )

    async def do_delete_before(self, facts: Any) -> None:
        partition = self.world.replicas._led.get(facts[0])
        if partition is not None:
            partition.delete_before(Offset(min(1, partition.high_watermark)))

    async def do_new_epoch(self, facts: Any) -> None:
        (name, index), leads = facts
        partition = self.world.replicas._partitions.get((name, index))
        if partition is not None:
            epoch = partition.leader_epoch + 1
            followers = (OTHER,) if (name, index) in (("a", 2), ("b", 0)) else ()
            state = led(*followers, epoch=epoch) if leads or not followers else followed(epoch)
            self.world.elect(name, index, state)

    async def do_delete_topic(self, facts: Any) -> None:
        if "c" in self.world.replicas.image.topics:
            self.world.delete("c")

    async def do_leave_isr(self, place: tuple[str, int]) -> None:
        partition = self.world.replicas._led.get(place)
        if partition is not None:
            state = partition.leader_state
            self.world.elect(
                *place,
                led(OTHER, epoch=partition.leader_epoch)._replace(
                    partition_epoch=state.partition_epoch + 1, isr=(HERE,)
                ),
            )

    async def do_register_again(self, facts: Any) -> None:
        self.epoch += 1

    def known_of_followers(self) -> list[object]:
        return [
            (place, partition.high_watermark, state.isr, each.end_offset, each.broker_epoch)
            for place, partition in self.world.replicas._led.items()
            if (state := partition.leader_state) is not None
            for each in state.followers.values()
        ]

    def end_sessions(self) -> None:
        for number in list(self.handler._sessions._sessions):
            self.handler._sessions.remove(number)

    async def do_wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.booleans())
def test_both_fetch_paths_give_the_same_responses(seed: int, length: int, of_replica: bool) -> None:
    history = History(seed, of_replica=of_replica).events(length)
    answers = []
    for large_from in (1000, -1):
        simulation = Simulation(seed)

        async def main(large_from: int = large_from) -> Any:
            broker = Broker(large_from)
            await broker.play(history)
            broker.world_is_unpinned()
            event("partitions were settled" if broker.settled_max else "none was settled")
            broker.end_sessions()
            assert all(not p.replica_log.delayed._at_end for p in broker.world.replicas)
            assert all(not p.replica_log.delayed._at_watermark for p in broker.world.replicas)
            return broker.answers, broker.waited, broker.known

        answers.append(simulation.run(main()))
    assert answers[0] == answers[1]
