"""What the fuzzer sends: one case for each number, a pure function of the seed and the world.

If a case has `answers`, the broker must send exactly these, in order, and keep the connection.
Otherwise it may answer or close; the sender finds out.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from fuzz.batches import BOMBS, bomb, good_batch, hostile_batch
from fuzz.mutations import mutate
from fuzz.requests import frame, produce_body, request_body
from fuzz.world import PARTITIONS, TOPICS, World
from suwi.records.compression import Compression
from suwi.wire.versions import APIS, ApiKey

_BOMB_TOPICS: Final = ("to-gzip", "to-zstd", "to-plain", "compacted", "compacted-lz4")
_MEBIBYTE: Final = 1 << 20
_NOISE: Final = (
    b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),  # a TLS hello
    b"SSH-2.0-OpenSSH_9.6\r\n",
    bytes(64),
    b"\xff" * 64,
)


class Ending(Enum):
    """What the peer does after it has sent."""

    STAY = "stay"
    CLOSE = "close"
    HALF_CLOSE = "half-close"
    RESET = "reset"


class Expected(NamedTuple):
    api_key: int
    version: int
    correlation_id: int


@dataclass(frozen=True, slots=True)
class Case:
    number: int
    what: str
    data: bytes
    answers: tuple[Expected, ...] | None = None
    ending: Ending = Ending.STAY
    pieces: int = 1
    """The number of writes in which it is sent."""
    is_slow: bool = False
    """A bomb: the response may take long."""


def make_case(seed: int, number: int, world: World) -> Case:
    # A string seeds the same way in every process and version.
    chance = random.Random(f"suwi fuzz {seed} {number}")
    roll = chance.random()
    for share, kind in _KINDS:
        if roll < share:
            return kind(chance, number, world)
        roll -= share
    return _well_formed(chance, number, world)


def _well_formed(chance: random.Random, number: int, world: World) -> Case:
    """Requests of any API and version, several at once."""
    data, answers = [], []
    for place in range(chance.choice((1, 1, 3, 10))):
        api_key, version = chance.choice(world.served)
        correlation_id = _correlation_id(number, place)
        body = request_body(chance, world, api_key, version)
        data.append(frame(api_key, version, correlation_id, body))
        answers.append(Expected(api_key, version, correlation_id))
    what = ", ".join(f"{APIS[a.api_key].name} v{a.version}" for a in answers)
    pieces = chance.choice((1, 1, 2, 5))
    return Case(number, f"well-formed {what}", b"".join(data), tuple(answers), pieces=pieces)


def _broken_body(chance: random.Random, number: int, world: World) -> Case:
    """A request that is changed after its frame size, which still matches."""
    api_key, version = chance.choice(world.served)
    body = request_body(chance, world, api_key, version)
    data = frame(api_key, version, _correlation_id(number, 0), body)[4:]
    start = len(data) - len(body) if chance.random() < 0.9 else 0
    how, data = mutate(chance, data, start)
    what = f"{APIS[api_key].name} v{version}, {how}"
    return _unpredictable(chance, number, what, len(data).to_bytes(4, "big") + data)


def _broken_batch(chance: random.Random, number: int, world: World) -> Case:
    """A hostile batch in a good request: rejected or accepted, but always answered."""
    how, records = hostile_batch(chance)
    return _produce(chance, number, world, how, records)


def _good_batch(chance: random.Random, number: int, world: World) -> Case:
    return _produce(chance, number, world, "good batch", good_batch(chance))


def _bomb(chance: random.Random, number: int, world: World) -> Case:
    kind = chance.choice(BOMBS)
    codec = chance.choice(tuple(Compression))
    size_bytes = chance.choice((1, 1, 1, 1, 1, 1, 1, 1, 15, 120)) * _MEBIBYTE
    topic = chance.choice(_BOMB_TOPICS)
    how = f"bomb of {kind} in {codec.name}, {size_bytes >> 20} MiB"
    records = bomb(kind, codec, size_bytes)
    return _produce(chance, number, world, how, records, topic=topic, is_slow=True)


def _produce(
    chance: random.Random,
    number: int,
    world: World,
    how: str,
    records: bytes,
    *,
    topic: str | None = None,
    is_slow: bool = False,
) -> Case:
    version = chance.choice(world.produce_versions)
    topic = topic or chance.choice(tuple(TOPICS))
    acks = chance.choice((-1, -1, 1, 0))
    body = produce_body(world, version, topic, records, acks, chance.randrange(PARTITIONS))
    correlation_id = _correlation_id(number, 0)
    data = frame(ApiKey.PRODUCE, version, correlation_id, body)
    answers = None if acks == 0 else (Expected(ApiKey.PRODUCE, version, correlation_id),)
    what = f"Produce v{version} acks={acks} to {topic}: {how}"
    return Case(number, what, data, answers, is_slow=is_slow)


def _broken_frame(chance: random.Random, number: int, world: World) -> Case:
    """A wrong frame size around a good request."""
    api_key, version = chance.choice(world.served)
    body = request_body(chance, world, api_key, version)
    data = frame(api_key, version, _correlation_id(number, 0), body)
    true_size = len(data) - 4
    size = chance.choice(
        (-1, -(2**31), 0, 1, 7, 2**31 - 1, 104_857_600, 104_857_601, true_size - 1, true_size + 1)
    )
    data = (size & 0xFFFF_FFFF).to_bytes(4, "big") + data[4:]
    return _unpredictable(chance, number, f"{APIS[api_key].name} in a frame of {size}", data)


def _not_served(chance: random.Random, number: int, world: World) -> Case:
    """An API or a version that is not served."""
    api_key = chance.choice((*APIS, -1, 4, 999, 32767, -32768))
    version = chance.choice((-1, 0, 1, 14, 99, 32767, -32768))
    head = (api_key & 0xFFFF).to_bytes(2, "big") + (version & 0xFFFF).to_bytes(2, "big")
    data = head + number.to_bytes(4, "big") + b"\0\0\0" + chance.randbytes(chance.choice((0, 40)))
    what = f"API {api_key} v{version}"
    return _unpredictable(chance, number, what, len(data).to_bytes(4, "big") + data)


def _noise(chance: random.Random, number: int, world: World) -> Case:
    """No request at all."""
    noise = chance.choice((*_NOISE, chance.randbytes(chance.choice((3, 100, 10_000)))))
    return _unpredictable(chance, number, "noise", noise)


def _unpredictable(chance: random.Random, number: int, what: str, data: bytes) -> Case:
    ending = chance.choice((Ending.STAY,) * 7 + (Ending.CLOSE, Ending.HALF_CLOSE, Ending.RESET))
    return Case(number, what, data, None, ending, chance.choice((1, 1, 1, 2, 7)))


def _correlation_id(number: int, place: int) -> int:
    return (number * 16 + place) & 0x7FFF_FFFF


_KINDS: Final[tuple[tuple[float, Callable[[random.Random, int, World], Case]], ...]] = (
    (0.002, _bomb),
    (0.40, _broken_body),
    (0.25, _broken_batch),
    (0.05, _good_batch),
    (0.05, _broken_frame),
    (0.02, _not_served),
    (0.02, _noise),
)
"""The share of each kind; the rest is well-formed."""
