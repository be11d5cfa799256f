"""The table of mechanisms that may meet in a simulated run, and which two of them each seed has.

Each is tested on its own; faults are left where two of them meet. So every seed is given a pair
(`mechanisms_of`): the clients, the settings and the faults that lead to both. `mechanism_watch`
notices which mechanisms were active, and when; `pair_table` counts.
Invariant: any `len(PAIRS)` consecutive seeds are given every pair once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations
from typing import Any

from simulation.shape import WriterKind

_STRIDE = 7919
"""A prime that is larger than the number of pairs: neighbouring seeds have different mechanisms."""


class Kind(Enum):
    SETTING = "setting"
    ACTION = "action of clients"
    WORK = "work of brokers"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Mechanism:
    name: str
    kind: Kind
    seen: str
    """How one knows, from the run itself, that it is active."""
    shape: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fields of the run's shape that lead to it."""
    faults: tuple[str, ...] = ()
    """Kinds of faults that lead to it."""


_GROUP = {"members": 3}
_TRANSACTIONS = {
    "copiers": 1,
    "partitions": 2,
    "unclean_elections": False,
}
_SAFE = {"min_insync_replicas": 2, "replication_factor": 3}

MECHANISMS: tuple[Mechanism, ...] = (
    Mechanism(
        "flush each message",
        Kind.SETTING,
        "a leader has `flush.messages=1`",
        {"flushes_each": True, "unclean_elections": False},
    ),
    Mechanism(
        "min.insync change",
        Kind.ACTION,
        "`min.insync.replicas` of a topic differs from before",
        {"alters_min_insync": True},
    ),
    Mechanism(
        "reassignment",
        Kind.ACTION,
        "a partition has adding or removing replicas",
        {"reassigns": True},
    ),
    Mechanism(
        "replication throttle",
        Kind.SETTING,
        "a throttled fetch has to wait",
        {"throttles": True},
        ("kill", "stop"),
    ),
    Mechanism("DeleteRecords", Kind.ACTION, "a leader moves its log start", {"deletes": True}),
    Mechanism(
        "partition growth", Kind.ACTION, "a topic has more partitions than before", {"grows": True}
    ),
    Mechanism("topic creation", Kind.ACTION, "a topic appears in the metadata", {"churns": True}),
    Mechanism("topic deletion", Kind.ACTION, "a topic is gone from the metadata", {"churns": True}),
    Mechanism(
        "pipelined writer",
        Kind.ACTION,
        "an idempotent writer sends several requests on one connection",
        {"pipelines": True},
    ),
    Mechanism(
        "follower read", Kind.ACTION, "a follower reads for a consumer", {"rack_aware": True}
    ),
    Mechanism(
        "open transaction", Kind.ACTION, "a coordinator has an ongoing transaction", _TRANSACTIONS
    ),
    Mechanism(
        "classic members",
        Kind.ACTION,
        "a group of the classic protocol has members",
        {**_GROUP, "consumer": False},
    ),
    Mechanism(
        "848 members",
        Kind.ACTION,
        "a consumer group has members of the consumer protocol",
        {**_GROUP, "consumer": True},
    ),
    Mechanism(
        "both protocols in a group",
        Kind.ACTION,
        "a consumer group has members of both protocols",
        {**_GROUP, "mixed": True},
    ),
    Mechanism(
        "static members", Kind.ACTION, "a member has an instance id", {**_GROUP, "static": True}
    ),
    Mechanism(
        "retention", Kind.WORK, "segments above the log start are removed", {"retains": True}
    ),
    Mechanism("segment deletion", Kind.WORK, "segments are removed", {"retains": True}),
    Mechanism(
        "compaction", Kind.WORK, "segments are replaced by a cleaned one", {"compacts": True}
    ),
    Mechanism("log roll", Kind.WORK, "a segment is finished and the next one begun"),
    Mechanism("scrubbing", Kind.WORK, "a closed segment is read by the scrubber", {"scrubs": True}),
    Mechanism(
        "offsets expiry",
        Kind.WORK,
        "offsets are removed after their time",
        {"expires_offsets": True},
    ),
    Mechanism(
        "producer id expiry",
        Kind.WORK,
        "an inactive producer is removed",
        {"expires_producers": True},
    ),
    Mechanism(
        "transaction time-out",
        Kind.WORK,
        "a coordinator aborts a transaction that was open for too long",
        {**_TRANSACTIONS, "dawdles": True},
    ),
    Mechanism("member expiry", Kind.WORK, "the session of a member ends", _GROUP),
    Mechanism(
        "paused coordinator",
        Kind.WORK,
        "the timers of a shard stand still, because too few replicas are in sync",
        {**_GROUP, **_SAFE},
        ("coordinator waits",),
    ),
    Mechanism(
        "leader rebalance",
        Kind.WORK,
        "the preferred replica leads again, and the leader before it is in service",
        faults=("kill", "stop"),
    ),
    Mechanism("controlled shutdown", Kind.WORK, "a broker is stopping in order", faults=("stop",)),
    Mechanism(
        "truncation",
        Kind.WORK,
        "a replica removes the end of its log",
        {"writers": (WriterKind(), WriterKind(acks=1, idempotent=False)), "pause_s_max": 0.3},
        ("depose leader",),
    ),
    Mechanism(
        "refused: too few in sync",
        Kind.WORK,
        "a write is refused with NOT_ENOUGH_REPLICAS",
        _SAFE,
        ("too few in sync",),
    ),
    Mechanism(
        "refused: storage",
        Kind.WORK,
        "a write is refused with KAFKA_STORAGE_ERROR",
        faults=("fill disk", "fill disk of a leader"),
    ),
    Mechanism(
        "unclean election",
        Kind.FAULT,
        "a leader from outside the ISR leads, until all replicas follow it",
        {"unclean_side": True, **_SAFE},
        ("unclean election",),
    ),
    Mechanism(
        "process kill",
        Kind.FAULT,
        "a broker's process ends, and was not stopping",
        faults=("kill",),
    ),
    Mechanism("power loss", Kind.FAULT, "a broker's machine loses power", _SAFE, ("lose power",)),
    Mechanism("pause", Kind.FAULT, "a broker's process is stopped (SIGSTOP)", faults=("freeze",)),
    Mechanism("network cut", Kind.FAULT, "a link is cut or refused", faults=("cut", "isolate")),
    Mechanism(
        "store loss",
        Kind.FAULT,
        "a running broker has no connection to the store",
        faults=("cut store", "store outage"),
    ),
    Mechanism(
        "controller change", Kind.FAULT, "a controller is elected", faults=("depose controller",)
    ),
    Mechanism(
        "full disk", Kind.FAULT, "a write fails with ENOSPC", faults=("fill disk of a leader",)
    ),
    Mechanism(
        "damaged segment",
        Kind.FAULT,
        "a broker has found a batch that does not match its checksum",
        {"scrubs": True, "reassigns": False, **_SAFE},
        ("damage log",),
    ),
    Mechanism("slow disk", Kind.FAULT, "a call takes long", faults=("stall disk",)),
    Mechanism(
        "failing disk", Kind.FAULT, "a call fails, other than for space", faults=("fail disk once",)
    ),
    Mechanism(
        "access rules change",
        Kind.ACTION,
        "a broker has other access rules than before, or one of them refuses a request",
        {"changes_rules": True},
    ),
    Mechanism(
        "throttled client", Kind.SETTING, "a quota mutes a connection", {"limits_clients": True}
    ),
    Mechanism("watched partition", Kind.ACTION, "somebody watches a partition", {"watches": True}),
)

IMPOSSIBLE: dict[frozenset[str], str] = {
    frozenset({"reassignment", "damaged segment"}): (
        "outside the budget, the replica that is moved away may be the only one without damage"
    ),
}
"""Pairs that cannot meet, with the reason."""

PAIRS: tuple[tuple[Mechanism, Mechanism], ...] = tuple(
    pair
    for pair in combinations(MECHANISMS, 2)
    if frozenset(each.name for each in pair) not in IMPOSSIBLE
)


def mechanisms_of(seed: int) -> list[Mechanism]:
    """The pair that a seed must have, and a third one, which forms two pairs more."""
    return [*PAIRS[seed * _STRIDE % len(PAIRS)], MECHANISMS[seed % len(MECHANISMS)]]


def named(names: Iterable[str]) -> list[Mechanism]:
    by_name = {mechanism.name: mechanism for mechanism in MECHANISMS}
    return [by_name[name] for name in names]


def shape_of(mechanisms: Iterable[Mechanism]) -> dict[str, Any]:
    """What replaces fields of the drawn shape, so that a run has all of them."""
    wanted: dict[str, Any] = {}
    for mechanism in mechanisms:
        for key, value in mechanism.shape.items():
            if key == "consumer" and wanted.get(key, value) != value:
                wanted["mixed"] = True
            wanted[key] = value
    return wanted


def faults_of(mechanisms: Iterable[Mechanism]) -> list[str]:
    return list(dict.fromkeys(kind for mechanism in mechanisms for kind in mechanism.faults))
