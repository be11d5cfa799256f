"""What the cluster wants remembered, above all lost records: kept in the store, the newest first
to be looked for and the oldest first to go.

`operations` makes the entries of new events, `events` reads those of an image.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suwi.metadata.image import EVENTS, ClusterImage
from suwi.metadata.store import Delete, Operation, Put

EVENTS_KEPT = 200
UNCLEAN_ELECTION = "unclean election"
"""A replica leads that was not in sync: `lost_at_least` says which committed records it misses, as
far as anyone alive knows; None: `LOSS_UNKNOWN`."""
LOSS_UNKNOWN = "unknown until a former in-sync replica returns"
SUSPECT_ELECTION = "election after a power loss"
"""All that were in sync lost power: what was above the recovery point may be gone."""
RECORDS_LOST = "records lost"
"""A replica gave up exactly these, which its leader does not have: committed was what is below
`committed_below`, the rest may have been."""


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    at_ms: int
    facts: Mapping[str, Any] = field(default_factory=dict)


def operations(image: ClusterImage, new: Sequence[Event]) -> list[Operation]:
    """Write these down, and forget the oldest."""
    numbers = sorted(image.events)
    first = numbers[-1] + 1 if numbers else 0
    writes: list[Operation] = [
        Put(_key(first + index), _encode(event)) for index, event in enumerate(new)
    ]
    surplus = len(numbers) + len(new) - EVENTS_KEPT
    writes += [Delete(_key(number)) for number in numbers[: max(0, surplus)]]
    return writes


def events(image: ClusterImage) -> list[Event]:
    """All that are kept, the oldest first."""
    return [_decode(image.events[number]) for number in sorted(image.events)]


def logged_facts(event: Event) -> dict[str, Any]:
    """The facts of an event as the log shows them: that no loss is known does not mean no loss."""
    facts = dict(event.facts)
    if facts.get("lost_at_least", ()) is None:
        facts["lost_at_least"] = LOSS_UNKNOWN
    return facts


def _key(number: int) -> str:
    return f"{EVENTS}{number}"


def _encode(event: Event) -> bytes:
    value = {"kind": event.kind, "at_ms": event.at_ms, "facts": event.facts}
    return json.dumps(value, separators=(",", ":")).encode()


def _decode(data: bytes) -> Event:
    value = json.loads(data)
    return Event(value["kind"], value["at_ms"], value["facts"])
