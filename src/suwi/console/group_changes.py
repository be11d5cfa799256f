"""Changes of consumer groups: reset, deletion, deletion of the offsets of a topic."""

from functools import partial
from typing import NamedTuple

from suwi.admin.group_changes import remove_group, remove_offsets
from suwi.admin.group_descriptions import Scope, committed_in, unknown_group
from suwi.admin.offset_reset import apply_reset, parse_reset, plan_reset
from suwi.admin.text import count_text
from suwi.client.groups import committed_offsets, describe_group
from suwi.console.change import BadValue, Plan, PlanRow, about, all_done
from suwi.console.clusters import ShownCluster

_WITH_A_VALUE = ("to-offset", "shift-by", "to-datetime", "by-duration")
_GOALS = ("to-earliest", "to-latest", *_WITH_A_VALUE)


class GroupReset(NamedTuple):
    group: str
    topic: str | None
    """None: all topics that it has offsets of."""
    partition: int | None
    """None: all of the topic."""
    to: str
    """An option of `suwi groups reset`, without the dashes."""
    value: str
    """Of this option; empty if it has none."""


async def reset_group(shown: ShownCluster, asked: GroupReset) -> Plan:
    group, topic, partition, to, value = asked
    if to not in _GOALS:
        raise BadValue("to", f"allowed: {', '.join(_GOALS)}")
    with about("value"):
        reset = parse_reset(f"--{to}", value, shown.clock.now_ms())
    scopes, which = [], ["--all-topics"]
    if topic is not None:
        scopes = [Scope(topic, None if partition is None else (partition,))]
        which = ["--topic", topic if partition is None else f"{topic}:{partition}"]
    plan = await plan_reset(shown.client, group, scopes, reset)
    option = [f"--{to}", value] if to in _WITH_A_VALUE else [f"--{to}"]
    rows = [
        PlanRow(f"{c.topic}-{c.partition}", _text(c.current_offset), str(c.new_offset))
        for c in plan.changes
    ]
    return Plan(
        shown.command("groups reset", group, options=[*which, *option, "--execute"]),
        partial(apply_reset, shown.client, plan),
        f"reset {count_text(len(rows), 'partition')} of group {group}",
        rows,
        plan.notes,
    )


class OldGroup(NamedTuple):
    group: str


async def delete_group(shown: ShownCluster, asked: OldGroup) -> Plan:
    name = asked.group
    if await describe_group(shown.client, name) is None:
        raise await unknown_group(shown.client, name)
    committed = await committed_offsets(shown.client, name)
    return Plan(
        shown.command("groups delete", name, options=["--yes"]),
        partial(remove_group, shown.client, name),
        f"deleted group {name}",
        [PlanRow(str(place), str(offset), "") for place, offset in sorted(committed.items())],
        confirm=name,
    )


class OldOffsets(NamedTuple):
    group: str
    topic: str


async def delete_offsets(shown: ShownCluster, asked: OldOffsets) -> Plan:
    name, topic = asked
    committed = await committed_offsets(shown.client, name)
    places = sorted(committed_in(committed, [Scope(topic, None)]))
    return Plan(
        shown.command("groups delete", name, options=["--topic", topic, "--yes"]),
        lambda: all_done(remove_offsets(shown.client, name, places)),
        f"deleted {count_text(len(places), 'offset')} of group {name}",
        [PlanRow(str(place), str(committed[place]), "") for place in places],
        confirm=name,
    )


def _text(offset: int | None) -> str:
    return "" if offset is None else str(offset)
