"""Faults of a cluster, mostly of one broker: the start, the duration and the end of each.

`KINDS` are those of a test cluster, `chaos.process_faults` has those of processes. `plan` draws
them from a seed. Invariant: one broker has one fault at a time; a machine loses power
only while all replicas are in sync: within that budget no acknowledged record may be lost.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from suwi.testing import Cluster

_SLOW_MS = 250


@dataclass(frozen=True, slots=True)
class Kind:
    begin: Callable[[Any, int], None]
    end: Callable[[Any, int], None]
    hold_s: tuple[float, float]
    needs_sync: bool = False
    """It starts only when all replicas are in sync, and the next only when they are again."""
    has_target: bool = True
    """It is a fault of one broker."""
    goes_on: bool = False
    """Writers and groups must not notice it."""


def nothing(_cluster: object, _broker: int) -> None:
    """For a fault that ends by itself."""


def _isolate(cluster: Cluster, broker: int) -> None:
    cluster.partition({broker}, set(cluster.brokers) - {broker})


KINDS: dict[str, Kind] = {
    "full disk": Kind(Cluster.fill_disk, Cluster.free_disk, (0.3, 3.0)),
    # Longer than the session: another broker leads, and this one still believes that it does.
    "pause": Kind(Cluster.pause, Cluster.resume, (1.3, 3.5)),
    "kill": Kind(Cluster.kill, Cluster.restart, (0.1, 2.0)),
    "partition": Kind(_isolate, lambda cluster, _: cluster.heal(), (0.5, 4.0)),
    "slow": Kind(lambda c, b: c.slow(b, _SLOW_MS), lambda cluster, _: cluster.heal(), (0.5, 2.5)),
    "expired session": Kind(Cluster.expire_session, nothing, (0.0, 0.5)),
    "power loss": Kind(Cluster.power_loss, Cluster.restart, (0.1, 2.0), needs_sync=True),
}

_BAG = (*KINDS, "full disk", "pause")
"""Full disks and pauses are twice as frequent: they once caused duplicates."""
_NOT_AIMED = 0.5
"""How often any broker is chosen, whatever it leads."""
_IN_HASTE = 0.3
"""How often the next fault does not wait until all replicas are in sync again."""


@dataclass(frozen=True, slots=True)
class Fault:
    number: int
    kind: str
    broker: int | None
    """None: the leader of the partition."""
    partition: int
    hold_s: float
    is_hasty: bool
    """The next fault starts at once."""


def plan(
    faults: int,
    brokers: tuple[int, ...],
    partitions: int,
    seed: int,
    kinds_of: Mapping[str, Kind] = KINDS,
    bag: Sequence[str] = _BAG,
) -> list[Fault]:
    """The same for the same seed. Every kind is there before any comes again."""
    chance = random.Random(seed)
    drawn = _kinds(chance, bag)
    kinds = [next(drawn) for _ in range(faults + 1)]
    return [
        Fault(
            number + 1,
            kind,
            chance.choice(brokers) if chance.random() < _NOT_AIMED else None,
            chance.randrange(partitions),
            chance.uniform(*kinds_of[kind].hold_s),
            chance.random() < _IN_HASTE
            and not kinds_of[kind].needs_sync
            and not kinds_of[after].needs_sync,
        )
        for number, (kind, after) in enumerate(pairwise(kinds))
    ]


def _kinds(chance: random.Random, bag: Sequence[str]) -> Iterator[str]:
    while True:
        yield from chance.sample(bag, len(bag))
