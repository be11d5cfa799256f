"""What happens in a cluster, as events: the one schema of scenarios, recorded simulations and live
clusters.

A recording is JSON lines: a head with the version of the schema, then events in the order in which
they happened. An event is an object with its `kind`; fields that are unknown, or have not changed,
are left out. `write` and `read` are the entrances; docs/lab.md has the table of all kinds.
Invariant: a `replica` event has only what has changed, so a reader adds them up (`Replicas`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

VERSION = 4
READABLE = (1, 2, 3, 4)
"""Version 1 has no `follower` and `told`, and no `segments` and `producers` of replicas; version 2
has no `times` and `records`, and version 3 no `is_removed`, which live clusters have."""
STARTED = "the process starts"
ENDED = "the process ends"
POWER_LOST = "the machine loses power"
SILENT = "the broker does not answer"
ANSWERS = "the broker answers again"
"""What `Fault` says of the processes of brokers. The last two: as a live cluster is seen."""
DELETED = "the partition is deleted"
"""The last reason of an `Election`."""


class RecordingError(Exception):
    """A line is not of this schema. The message names it."""


@dataclass(frozen=True, kw_only=True)
class Event:
    kind: ClassVar[str]
    at_s: float = field(kw_only=False)
    """Virtual time since the start of the run; of a live cluster that since it was looked at."""
    broker: int | None = None
    partition: str | None = None
    epoch: int | None = None
    """The leader epoch; of groups the generation, of transactions the producer's epoch."""
    offset: int | None = None


@dataclass(frozen=True, kw_only=True)
class ReplicaChanged(Event):
    """A broker's copy of a partition; `offset` is its end. It is the leader's if `leads`."""

    kind = "replica"
    high_watermark: int | None = None
    last_stable: int | None = None
    log_start: int | None = None
    leads: bool | None = None
    epochs: tuple[tuple[int, int], ...] | None = None
    """All leader epochs of the log with their start offsets."""
    appended: tuple[tuple[int, int, int, str], ...] = ()
    """Batches: first and last offset, epoch, and the values if they are known, as text."""
    segments: tuple[int, ...] | None = None
    """The first offsets of all segments."""
    producers: tuple[tuple[int, int, int, int], ...] | None = None
    """What the replica remembers of producers: id, epoch, last sequence, and the first offset of
    the open transaction or -1."""
    is_removed: bool = False
    """The partition was moved away: this broker has no copy any more."""


@dataclass(frozen=True, kw_only=True)
class FollowerSeen(Event):
    """What the leader (`broker`) knows of a follower: it has everything below `offset`; None before
    its first fetch."""

    kind = "follower"
    follower: int
    caught_up_s: float | None = None
    """When it last had everything. None: it has, or never had in this leader epoch."""


@dataclass(frozen=True, kw_only=True)
class InSync(Event):
    """The leader (`broker`) proposes an in-sync set, or the controller has confirmed one."""

    kind = "in-sync"
    members: tuple[int, ...] = ()
    is_confirmed: bool


@dataclass(frozen=True, kw_only=True)
class Election(Event):
    """`broker` leads; None: nobody does. Without a partition: it is the controller."""

    kind = "election"
    reason: str


@dataclass(frozen=True, kw_only=True)
class Truncation(Event):
    """A replica removed records; `offset` is its end now."""

    kind = "truncation"
    removed: tuple[tuple[int, int, int], ...] = ()
    """Batches: first and last offset, epoch."""


@dataclass(frozen=True, kw_only=True)
class Loss(Event):
    """What the cluster itself reports: an unclean election, records that were lost."""

    kind = "loss"
    what: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Fetch(Event):
    """A follower (`broker`) fetches from `offset` on. One like the last is left out."""

    kind = "fetch"
    leader: int
    times: int = 1
    """How many events it stands for: it is the last of them."""


@dataclass(frozen=True, kw_only=True)
class FetchAnswer(Event):
    """What the follower got for its fetch. One without news is left out."""

    kind = "fetch-answer"
    leader: int
    high_watermark: int
    size_bytes: int = 0
    """Of the records."""
    error: str | None = None
    diverging: tuple[int, int] | None = None
    """The logs differ: the last epoch in common and its end (KIP-595)."""
    times: int = 1


@dataclass(frozen=True, kw_only=True)
class Send(Event):
    """A client sends records; the result has the same `number`."""

    kind = "send"
    client: str
    number: int
    values: tuple[str, ...] = ()
    acks: str
    records: int | None = None
    """How many there are, where the values are not known."""
    times: int = 1


@dataclass(frozen=True, kw_only=True)
class SendResult(Event):
    """`offset` is that of the acknowledgement. `error`: why it was refused, or not answered. One
    that stands for several is the result of all sends of the client up to `number`."""

    kind = "send-result"
    client: str
    number: int
    error: str | None = None
    times: int = 1


@dataclass(frozen=True, kw_only=True)
class Told(Event):
    """What else a client was told or did: records that it received, a commit."""

    kind = "told"
    client: str
    what: str


@dataclass(frozen=True, kw_only=True)
class GroupState(Event):
    kind = "group"
    group: str
    state: str
    members: int


@dataclass(frozen=True, kw_only=True)
class TransactionState(Event):
    kind = "transaction"
    transactional_id: str
    state: str
    producer_id: int


@dataclass(frozen=True, kw_only=True)
class Fault(Event):
    """What was done to a broker, a link or a disk, also when it is undone."""

    kind = "fault"
    what: str


@dataclass(frozen=True, kw_only=True)
class Violation(Event):
    """An invariant does not hold."""

    kind = "violation"
    what: str


@dataclass(frozen=True, kw_only=True)
class StepBegins(Event):
    """A step of a scenario, with its prose in English and Korean."""

    kind = "prose"
    step: int
    commands: tuple[str, ...] = ()
    en: str = ""
    ko: str = ""


@dataclass(frozen=True, kw_only=True)
class StepEnds(Event):
    """What a step changed, as the scenario asserts it."""

    kind = "result"
    step: int
    changes: tuple[str, ...] = ()


KINDS = {each.kind: each for each in Event.__subclasses__()}


@dataclass(frozen=True)
class Recording:
    source: str
    """Where it is from: a scenario's name, `seed N`, or a partition of a live cluster."""
    brokers: int
    events: Sequence[Event]


def write(recording: Recording) -> Iterator[str]:
    """The lines of a recording, each with its end."""
    yield _line(head_of(recording.source, recording.brokers))
    for event in recording.events:
        yield _line(fields_of(event))


def head_of(source: str, brokers: int) -> dict[str, Any]:
    """The first line of a recording."""
    return {"kind": "recording", "version": VERSION, "source": source, "brokers": brokers}


def fields_of(event: Event) -> dict[str, Any]:
    """A line of a recording: without fields that have their default."""
    values = ((each, getattr(event, each.name)) for each in fields(event))
    changed = {each.name: value for each, value in values if value != each.default}
    return {"kind": event.kind, **changed}


def read(lines: Iterable[str]) -> Recording:
    """Raises RecordingError."""
    numbered = iter(enumerate(lines, 1))
    number, first = next(numbered, (1, ""))
    head = _object(number, first)
    if head.get("kind") != "recording":
        raise RecordingError("line 1: this is no recording of the lab: it has no head")
    if head.get("version") not in READABLE:
        readable = ", ".join(map(str, READABLE))
        raise RecordingError(
            f"line 1: the recording has version {head.get('version')}; this reads {readable}"
        )
    events = [_event(number, line) for number, line in numbered if line.strip()]
    return Recording(str(head.get("source", "")), int(head.get("brokers", 0)), events)


def loss_of(at_s: float, kind: str, facts: Mapping[str, Any]) -> Loss:
    """What the cluster has recorded, as an event."""
    named = {name: facts.get(name) for name in ("partition", "broker", "epoch")}
    others = {name: fact for name, fact in facts.items() if name not in named}
    return Loss(at_s=at_s, what=kind, facts=others, **named)


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def _object(number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise RecordingError(f"line {number}: this is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RecordingError(f"line {number}: this is no JSON object")
    return found


def _event(number: int, line: str) -> Event:
    values = _object(number, line)
    kind = values.pop("kind", None)
    if kind not in KINDS:
        raise RecordingError(f"line {number}: there are no events of the kind {kind!r}")
    try:
        if not isinstance(values.get("at_s", 0), int | float):
            raise TypeError("at_s is not a number")
        return KINDS[kind](**{name: _frozen(each) for name, each in values.items()})
    except TypeError as error:
        raise RecordingError(f"line {number}: {error}") from None


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value


# -- the sum of events ----------------------------------------------------------------------------


_KEPT = (
    *("high_watermark", "last_stable", "log_start"),
    *("leads", "epochs", "segments", "producers"),
)
"""The fields of a `ReplicaChanged` that hold until the next one that has them."""


_DOWN = (ENDED, POWER_LOST, SILENT)


@dataclass
class ReplicaView:
    """A replica as the events so far describe it."""

    end: int = 0
    high_watermark: int = 0
    last_stable: int = 0
    log_start: int = 0
    leads: bool = False
    epochs: tuple[tuple[int, int], ...] = ()
    segments: tuple[int, ...] = ()
    producers: tuple[tuple[int, int, int, int], ...] = ()
    batches: list[tuple[int, int, int, str]] = field(default_factory=list)


class Replicas:
    """Adds up events: every replica, leader and in-sync set at one moment."""

    def __init__(self) -> None:
        self.replicas: dict[tuple[str, int], ReplicaView] = {}
        self.leaders: dict[str, tuple[int | None, int]] = {}
        """By partition the leader and its epoch."""
        self.in_sync: dict[str, tuple[int, ...]] = {}
        self.down: set[int] = set()

    def add(self, event: Event) -> None:
        name = event.partition or ""
        match event:
            case ReplicaChanged(is_removed=True) if event.broker is not None:
                self.replicas.pop((name, event.broker), None)
            case ReplicaChanged() if event.broker is not None:
                self._change(self.replicas.setdefault((name, event.broker), ReplicaView()), event)
            case Truncation() if event.broker is not None and event.offset is not None:
                view = self.replicas.setdefault((name, event.broker), ReplicaView())
                view.batches = [each for each in view.batches if each[1] < event.offset]
                view.end = event.offset
                view.high_watermark = min(view.high_watermark, view.end)
                view.last_stable = min(view.last_stable, view.end)
            case Election(reason=reason) if name and reason == DELETED:
                self.leaders.pop(name, None)
                self.in_sync.pop(name, None)
            case Election() if name:
                self.leaders[name] = (event.broker, event.epoch or 0)
            case InSync(is_confirmed=True):
                self.in_sync[name] = event.members
            case Fault(what=what) if event.broker is not None and what in (STARTED, ANSWERS):
                self.down.discard(event.broker)
            case Fault(what=what) if event.broker is not None and what in _DOWN:
                self.down.add(event.broker)

    def _change(self, view: ReplicaView, event: ReplicaChanged) -> None:
        view.end = view.end if event.offset is None else event.offset
        for name in _KEPT:
            value = getattr(event, name)
            if value is not None:
                setattr(view, name, value)
        view.batches += event.appended
