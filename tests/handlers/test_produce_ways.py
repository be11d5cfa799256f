"""The fast decoder for produce requests with one batch and the general one have the same outcome.

Two brokers that differ only in the decoder get the same random requests: responses and logs are
equal.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from suwi.handlers import produce
from suwi.handlers.produce import Produce
from suwi.model.ids import TopicPartition
from suwi.net.answers import CloseConnection, Exclusive, Later, NoReply, Reply
from suwi.records.builder import build_batch
from suwi.records.compression import Compression
from suwi.records.record import Record
from suwi.sim.simulation import Simulation
from suwi.wire.produce import decode_plain_request, encode_produce_request
from suwi.wire.versions import ApiKey
from tests.handlers.requests import request_of
from tests.handlers.world import EPOCHS, OTHER, World, followed, led, sent

TOPICS: dict[str, tuple[list[Any], dict[str, str]]] = {
    "plain": ([led(), led(OTHER), followed()], {}),
    "stamped": ([led()], {"message_timestamp_type": "LogAppendTime"}),
    "gzip": ([led()], {"compression_type": "gzip"}),
    "compacted": ([led()], {"cleanup_policy": "compact"}),
    "small": ([led()], {"max_message_bytes": "200"}),
    "guarded": ([led(OTHER)], {"min_insync_replicas": "2"}),
    "synced": ([led()], {"flush_messages": "1"}),
}
PLACES = [(name, index) for name, (states, _) in TOPICS.items() for index in range(len(states))]
STRANGE = [("plain", 9), ("nowhere", 0), ("__consumer_offsets", 0)]


class Draw:
    """Random requests, most of them as clients send them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._sequence = 0

    def request(self) -> dict[str, Any]:
        places = self._random.sample(PLACES, self._mostly(1, 0, 2, 3))
        if self._random.random() < 0.1:
            places += self._random.sample(STRANGE, 1)
        return {
            "version": self._random.choice([3, 7, 9, 9, 11, 12, 13, 13, 13]),
            "transactional_id": self._mostly(None, "t", "t", "busy"),
            "acks": self._mostly(-1, 1, 1, 0, 2),
            "timeout_ms": self._mostly(1000, 0),
            "batches": {place: self._batch() for place in places},
        }

    def _mostly(self, usual: Any, *others: Any) -> Any:
        return self._random.choice(others) if self._random.random() < 0.3 else usual

    def _batch(self) -> bytes | None:
        if self._random.random() < 0.03:
            return None
        count = self._random.randint(1, 3)
        size = self._mostly(20, 0, 300)
        records = [
            Record(key=self._mostly(b"k", None), value=b"v" * size, timestamp=1_000 + n)
            for n in range(count)
        ]
        facts: dict[str, Any] = {}
        if self._random.random() < 0.4:
            facts = {"producer_id": 7, "producer_epoch": 0, "base_sequence": self._next(count)}
            facts["transactional"] = self._random.random() < 0.2
        batch = bytearray(
            build_batch(records, codec=self._mostly(Compression.NONE, *_CODECS), **facts)
        )
        if self._random.random() < 0.1:
            at = self._random.randrange(len(batch))
            batch[at] ^= 1 << self._random.randrange(8)
        return bytes(batch)

    def _next(self, count: int) -> int:
        """Mostly the next sequence, sometimes a duplicate, sometimes a gap."""
        sequence = self._mostly(self._sequence, max(0, self._sequence - 1), self._sequence + 5)
        self._sequence = sequence + count
        return int(sequence)


_CODECS = (Compression.GZIP, Compression.ZSTD)


class FakeVerifier:
    """A coordinator that knows of any transaction of `t`, and cannot be asked for others."""

    is_enabled = True

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        error = ErrorCode.none if transactional_id == "t" else ErrorCode.not_coordinator
        return dict.fromkeys(partitions, error)


class Broker:
    def __init__(self, decode: Callable[..., Any]) -> None:
        self.world = World()
        for name, (states, configs) in TOPICS.items():
            self.world.add(name, states, **configs)
        self.handler = Produce(self.world.replicas, self.world.clock, FakeVerifier())
        self.decode = decode
        self.outcomes: list[Any] = []

    async def serve(self, facts: dict[str, Any]) -> None:
        topics: dict[str, list[tuple[int, Any]]] = {}
        for (name, index), batch in facts["batches"].items():
            topics.setdefault(name, []).append((index, batch and memoryview(bytearray(batch))))
        version = facts["version"]
        encoded = encode_produce_request(
            version,
            facts["transactional_id"],
            facts["acks"],
            facts["timeout_ms"],
            [(name, self.world.id_of(name), batches) for name, batches in topics.items()],
        )
        body = bytearray(b"".join(map(bytes, encoded)))
        try:
            with patch.object(produce, "decode_plain_request", self.decode):
                answer = self.handler(request_of(ApiKey.PRODUCE, version, body))
            self.outcomes.append(await self._outcome(answer))
        except CloseConnection as error:
            self.outcomes.append(str(error))

    async def _outcome(self, answer: Any) -> Any:
        if isinstance(answer, Later | Exclusive):
            kind = type(answer)
            self._catch_up()
            answer = await answer.reply
            return kind, sent(answer) if isinstance(answer, Reply) else answer
        if isinstance(answer, NoReply):
            return NoReply
        return sent(answer)

    def _catch_up(self) -> None:
        """The follower fetches all of one partition, and nothing new of the other."""
        partition = self.world.replicas.leader_of("plain", 1)
        partition.leader_replica.record_progress(
            OTHER, partition.log.end_offset, partition.log.start_offset, EPOCHS[OTHER]
        )

    def logs(self) -> list[tuple[str, int, bytes]]:
        found = []
        for partition in self.world.replicas:
            log = partition.log
            whole = log.read(log.start_offset, 1 << 20, log.end_offset, whole_batch=True)
            held = whole.read() if whole is not None else b""
            found.append((str(partition.partition), partition.high_watermark, held))
        return found


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_both_produce_decoders_have_the_same_outcome(seed: int, length: int) -> None:
    def without_fast_decoder(version: int, body: memoryview) -> None:
        return None

    results = []
    for decode in (decode_plain_request, without_fast_decoder):
        draw, simulation = Draw(seed), Simulation(seed)

        async def main(decode: Any = decode, draw: Draw = draw) -> Any:
            broker = Broker(decode)
            for _ in range(length):
                await broker.serve(draw.request())
            return broker.outcomes, broker.logs()

        results.append(simulation.run(main()))
    assert results[0] == results[1]
