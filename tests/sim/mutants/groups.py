"""What group coordinators are known to get wrong (G1 to G27): a simulated group must notice it.

They have no transcript. Each has a fault script: a group with three members, and what it takes to
come to the fault.
"""

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from simulation.seeded_run import Options
from suwi.coordinator.event import Event, PausableTimerKey
from suwi.coordinator.shard import Shard
from suwi.coordinator.timers import Timers
from suwi.env.slices import Pace, Slices
from suwi.group import offset_requests, reconciliation
from suwi.group.classic_coordinator import ClassicJoin, ClassicRebalances
from suwi.group.classic_group import ClassicGroup, Committer, session_timer
from suwi.group.classic_group_records import GroupMetadataValue
from suwi.group.consumer_group import ConsumerGroup
from suwi.group.consumer_validation import CommitFence
from suwi.model.errors import BrokerError
from tests.sim.mutants.mutant import FAULT, ScriptedMutant

_refusal = offset_requests._refusal
_replace = ClassicJoin._replace
_expel = ClassicRebalances.expel
_apply_once = Shard._apply_once
_apply = ClassicGroup.apply
_reports = reconciliation._reports
_resume = Timers.resume


def _script(*kinds: str, cooperative: bool = False, consumer: bool = False) -> Options:
    force = {"members": 3, "cooperative": cooperative, "consumer": consumer}
    return Options(force=force, kinds=kinds or ["reset"], long_cut=False)


def _without(code: ErrorCode) -> Any:
    def refusal(group: ClassicGroup | None, who: Committer) -> ErrorCode | None:
        error = _refusal(group, who)
        return None if error is code else error

    return refusal


def _reply_at_once(shard: Shard, replies: list[Any]) -> None:
    shard._replies.deliver(replies)


def _replace_unpersisted(
    join: ClassicJoin, group: ClassicGroup, request: Any, member_id: str, event: Event
) -> None:
    records = len(event.records)
    _replace(join, group, request, member_id, event)
    del event.records[records:]


def _keep_state(shard: Shard, error: Exception) -> None:
    """The requests fail, and what was replayed for them stays."""
    assert isinstance(error, BrokerError)
    shard._replies.fail_all(error)
    shard._queue.clear()
    shard._is_flushing = False
    shard._next_offset = shard._committed_end = shard.partition.log_as_it_is.end_offset


async def _load_what_is_committed(shard: Shard, leads: bool) -> bool:
    return await _apply_once(shard, False)


def _expel_only(
    rebalances: ClassicRebalances, group: ClassicGroup, member_id: str, event: Event
) -> Any:
    expelled = _expel(rebalances, group, member_id, event)
    event.timers.pop(session_timer(group.group_id, member_id), None)
    return expelled


def _confirmed_by_silence(reported: Any, pending: Any, pace: Pace) -> Slices[bool]:
    return reported is not None and (yield from _reports(reported, pending, pace))


def _apply_to_known(group: ClassicGroup, value: GroupMetadataValue) -> None:
    known = {member_id: member.protocols for member_id, member in group.members.items()}
    _apply(group, value)
    for member_id, member in group.members.items():
        member.protocols = known.get(member_id, member.protocols)


def _pauses_count_twice(timers: Timers) -> None:
    since_s = timers._paused_since_s
    _resume(timers)
    if since_s is not None:
        pause_s = asyncio.get_running_loop().time() - since_s
        for key, (deadline_s, at_s) in timers._deadlines.items():
            if isinstance(key, PausableTimerKey):
                timers._deadlines[key] = (deadline_s + pause_s, at_s)


MUTANTS = (
    ScriptedMutant(
        "commit-of-an-old-generation",
        FAULT,
        "G1: a member of an earlier generation may commit",
        (
            (
                offset_requests,
                "_refusal",
                _without(ErrorCode.illegal_generation),
            ),
        ),
        options=_script(),
    ),
    ScriptedMutant(
        "commit-while-completing",
        FAULT,
        "G2: a commit is accepted before the assignment is there",
        (
            (
                offset_requests,
                "_refusal",
                _without(ErrorCode.rebalance_in_progress),
            ),
        ),
        options=_script(),
    ),
    ScriptedMutant(
        "static-replacement-in-memory",
        FAULT,
        "G6: that a static member came back under a new id is not persisted",
        ((ClassicJoin, "_replace", _replace_unpersisted),),
        options=_script(),
    ),
    ScriptedMutant(
        "group-loaded-early",
        FAULT,
        "G9: a new coordinator serves when it has replayed what it knows to be committed",
        ((Shard, "_apply_once", _load_what_is_committed),),
        options=_script("kill", "kill", "freeze"),
    ),
    ScriptedMutant(
        "group-replies-early",
        FAULT,
        "G11: a request is answered before its records are committed",
        ((Shard, "_reply", _reply_at_once),),
        options=_script("kill", "isolate", "freeze"),
    ),
    ScriptedMutant(
        "state-of-a-refused-append",
        FAULT,
        "design 8: what was replayed for an append that failed stays",
        ((Shard, "_lose", _keep_state),),
        options=_script("kill", "fail disk", "fill disk", "isolate"),
    ),
    ScriptedMutant(
        "timers-of-removed-members",
        FAULT,
        "G24: the session of a member that was removed runs on",
        ((ClassicRebalances, "expel", _expel_only),),
        options=_script(),
    ),
    ScriptedMutant(
        "pauses-count-twice",
        FAULT,
        "G27: a member that is silent while heartbeats are refused stays for another such time",
        ((Timers, "resume", _pauses_count_twice),),
        options=_script("kill", "isolate", "freeze"),
    ),
    ScriptedMutant(
        "known-members-are-not-replayed",
        FAULT,
        "H0: a replica keeps what it first heard of a member",
        ((ClassicGroup, "apply", _apply_to_known),),
        options=_script(cooperative=True),
    ),
    ScriptedMutant(
        "partitions-are-nobodys",
        FAULT,
        "G17: a member is given what another one has not given up",
        ((ConsumerGroup, "owner", lambda *_: None),),
        options=_script(consumer=True),
    ),
    ScriptedMutant(
        "silence-ends-a-revocation",
        FAULT,
        "G17: a heartbeat that does not say what its member owns confirms a revocation",
        ((reconciliation, "_reports", _confirmed_by_silence),),
        options=_script(consumer=True),
    ),
    ScriptedMutant(
        "commit-of-what-another-has",
        FAULT,
        "G20: a member may commit any partition in the name of an earlier epoch",
        ((CommitFence, "of", lambda fence, *_: fence.error),),
        options=_script(consumer=True),
    ),
    ScriptedMutant(
        "released-partitions-stay-owned",
        FAULT,
        "H0: who owns a partition is what was once recorded, not what is",
        ((ConsumerGroup, "_release", lambda *_: None),),
        options=_script(consumer=True),
    ),
)
