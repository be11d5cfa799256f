"""Events of a live partition, made of what its brokers tell."""

from collections.abc import Sequence
from typing import Any

from suwi.client.own_apis import Watched
from suwi.lab import events
from suwi.lab.event_text import event_text
from suwi.lab.events import Event, Replicas
from suwi.lab.live_recorder import NEW_EPOCH, LiveRecorder


def state(node: int, *, end: int, role: str = "follower", **more: Any) -> dict[str, Any]:
    return {
        "node": node,
        "role": role,
        "leader": 1,
        "leader_epoch": 0,
        "epochs": [[0, 0]],
        "log_start": 0,
        "last_stable": 0,
        "high_watermark": 0,
        "log_end": end,
        "isr": None,
        "isr_proposed": None,
        "followers": [],
        "problem": None,
        "segments": [0],
        "producers": [],
        **more,
    }


def leader(node: int, *, end: int, **more: Any) -> dict[str, Any]:
    more = {"isr": [1, 2, 3], "partition_epoch": 0, **more}
    return state(node, end=end, role="leader", **more)


def told(
    state: dict[str, Any] | None = None,
    *noted: dict[str, Any],
    history: Sequence[dict[str, Any]] = (),
    controller: tuple[int, int | None] = (-1, None),
) -> Watched:
    return Watched(state, (), noted, 0, True, history, 0, controller, 0)


def fetch(broker: int, offset: int, *, ago_ms: int, epoch: int = 0, **more: Any) -> dict[str, Any]:
    fields = {"kind": "fetch", "broker": broker, "epoch": epoch, "offset": offset, "leader": 1}
    return {"serial": 1, "ago_ms": ago_ms, "times": 1, **fields, **more}


def send(offset: int, *, ago_ms: int) -> dict[str, Any]:
    fields = {"kind": "send", "epoch": 0, "offset": offset, "client": "p", "number": 1}
    more = {"acks": "all", "records": 1, "times": 1}
    return {"serial": 1, "ago_ms": ago_ms, "broker": 1, **fields, **more}


def result(offset: int, *, ago_ms: int) -> dict[str, Any]:
    fields = {"kind": "send-result", "epoch": 0, "offset": offset, "client": "p", "number": 1}
    return {"serial": 1, "ago_ms": ago_ms, "broker": 1, "end": offset + 1, **fields}


def change(partition_epoch: int, leader: int, epoch: int, *isr: int, **more: Any) -> dict[str, Any]:
    fields = {"leader": leader, "epoch": epoch, "partition_epoch": partition_epoch, "isr": isr}
    return {"ago_ms": 0, "election": "", **fields, **more}


def kinds(found: Sequence[Event]) -> list[str]:
    return [event.kind for event in found]


def test_between_brokers_the_order_is_that_of_epoch_and_offset_not_of_their_clocks() -> None:
    """The follower's clock is a minute behind."""
    recorder = LiveRecorder("orders-0")
    recorder.add(0, {1: told(leader(1, end=0)), 2: told(state(2, end=0))})
    noted = [send(0, ago_ms=90), result(0, ago_ms=10)]
    fetched = [fetch(2, 0, ago_ms=60_090), fetch(2, 1, ago_ms=60_020)]
    found = recorder.add(1, {2: told(None, *fetched), 1: told(None, *noted)})
    assert [(event.kind, event.offset) for event in found] == [
        ("fetch", 0),
        ("send", 0),
        ("fetch", 1),
        ("send-result", 0),
    ]
    times = [event.at_s for event in found]
    assert times == sorted(times)


def test_a_later_epoch_comes_after_an_earlier_one() -> None:
    recorder = LiveRecorder("orders-0")
    old = told(None, fetch(2, 9, ago_ms=5), history=[change(1, 1, 0, 1, 2)])
    new = told(
        None, fetch(3, 4, ago_ms=90, epoch=1), history=[change(2, 2, 1, 2, ago_ms=95, election="x")]
    )
    found = recorder.add(1, {3: new, 2: old})
    assert [(event.kind, event.epoch) for event in found] == [
        ("fetch", 0),
        ("election", 0),
        ("in-sync", 0),
        ("election", 1),
        ("in-sync", 1),
        ("fetch", 1),
    ]


def test_what_several_brokers_tell_happened_once() -> None:
    recorder = LiveRecorder("orders-0")
    changes = [change(4, 1, 0, 1, 2), change(5, 2, 1, 2, election="the former leader is away")]
    found = recorder.add(1, {node: told(history=changes) for node in (2, 3)})
    assert kinds(found) == ["election", "in-sync", "election", "in-sync"]
    assert isinstance(found[2], events.Election)
    assert (found[2].broker, found[2].reason) == (2, "the former leader is away")
    assert recorder.add(2, {1: told(history=changes)}) == []


def test_an_election_that_is_in_no_history_yet_is_known_from_the_leader() -> None:
    recorder = LiveRecorder("orders-0")
    found = recorder.add(1, {2: told(leader(2, end=0, leader_epoch=3, partition_epoch=7))})
    assert isinstance(found[0], events.Election)
    assert (found[0].broker, found[0].epoch, found[0].reason) == (2, 3, NEW_EPOCH)
    assert event_text(found[0], "ko").endswith("새 리더에포크")
    late = change(7, 2, 3, 1, 2, 3, election="the former leader is away")
    assert recorder.add(2, {3: told(history=[late])}) == []


def test_a_proposal_is_told_and_withdrawn() -> None:
    recorder = LiveRecorder("orders-0")
    recorder.add(0, {1: told(leader(1, end=0))})
    (proposed,) = recorder.add(1, {1: told(leader(1, end=0, isr_proposed=[1]))})
    assert isinstance(proposed, events.InSync)
    assert (proposed.members, proposed.is_confirmed) == ((1,), False)
    (refused,) = recorder.add(2, {1: told(leader(1, end=0))})
    assert isinstance(refused, events.InSync)
    assert (refused.members, refused.is_confirmed) == ((1, 2, 3), False)
    recorder.add(3, {1: told(leader(1, end=0, isr_proposed=[1]))})
    (confirmed,) = recorder.add(
        4, {1: told(leader(1, end=0, isr=[1], partition_epoch=1), history=[change(1, 1, 0, 1)])}
    )
    assert isinstance(confirmed, events.InSync)
    assert (confirmed.members, confirmed.is_confirmed) == ((1,), True)


def test_after_a_truncation_the_state_is_what_the_broker_says() -> None:
    recorder, sum_of = LiveRecorder("orders-0"), Replicas()
    truncation = {"kind": "truncation", "broker": 2, "epoch": 1, "offset": 4}
    truncation |= {"serial": 1, "ago_ms": 3, "removed": [[4, 8, 0]], "partition": "orders-0"}
    for answer in (
        told(state(2, end=9, high_watermark=5)),
        told(state(2, end=9, high_watermark=5), truncation),
    ):
        for event in recorder.add(1, {2: answer}):
            sum_of.add(event)
    view = sum_of.replicas["orders-0", 2]
    assert (view.end, view.high_watermark) == (9, 5)  # It has fetched again since.


def test_a_broker_that_does_not_answer_is_down_until_it_does() -> None:
    recorder, sum_of = LiveRecorder("orders-0"), Replicas()
    found = [*recorder.add(1, {1: None, 2: told(state(2, end=1))}), *recorder.add(2, {1: None})]
    for event in found:
        sum_of.add(event)
    assert sum_of.down == {1}
    (again,) = recorder.add(3, {1: told()})
    sum_of.add(again)
    assert (again.kind, sum_of.down) == ("fault", set())


def test_a_replica_that_cannot_be_read_keeps_what_was_known() -> None:
    recorder, sum_of = LiveRecorder("orders-0"), Replicas()
    for each in (state(2, end=9), state(2, end=-1, problem="the log cannot be read", epochs=[])):
        for event in recorder.add(1, {2: told(each)}):
            sum_of.add(event)
    assert sum_of.replicas["orders-0", 2].end == 9


def test_followers_are_told_again_after_an_election() -> None:
    recorder = LiveRecorder("orders-0")
    seen = {"node": 2, "end_offset": 5, "lag_ms": 0, "in_sync": True}
    first = leader(1, end=5, followers=[seen])
    assert kinds(recorder.add(0, {1: told(first)}))[-1] == "follower"
    assert recorder.add(1, {1: told(first)}) == []
    late = leader(1, end=6, followers=[{**seen, "lag_ms": 1500}])
    *_, behind = recorder.add(2, {1: told(late)})
    assert isinstance(behind, events.FollowerSeen)
    assert behind.caught_up_s == 0.5
    later = {**late, "followers": [{**seen, "lag_ms": 1700}]}
    assert recorder.add(2.2, {1: told(later)}) == []
    assert kinds(recorder.add(3, {1: told({**late, "followers": [{**seen, "lag_ms": 2500}]})})) == [
        "follower"
    ]
    new = {**first, "leader_epoch": 1, "partition_epoch": 1, "log_end": 6}
    assert kinds(recorder.add(4, {1: told(new)}))[-1] == "follower"


def test_no_follower_was_last_caught_up_in_the_future() -> None:
    seen = {"node": 2, "end_offset": 1, "lag_ms": 1, "in_sync": True}
    answer = told(leader(1, end=2, followers=[seen]))
    (event,) = [
        each
        for each in LiveRecorder("a-0").add(5.999, {1: answer})
        if isinstance(each, events.FollowerSeen)
    ]
    assert event.caught_up_s is not None
    assert event.caught_up_s <= event.at_s


def test_a_replica_that_was_moved_away_is_gone_when_its_broker_does_not_have_it_any_more() -> None:
    recorder, sum_of = LiveRecorder("orders-0"), Replicas()

    def replicas_after(answer: Watched | None, *assigned: int) -> set[int]:
        others = {1: told(leader(1, end=3)), 3: None}
        for event in recorder.add(1, {**others, 2: answer}, assigned=assigned):
            sum_of.add(event)
        assert recorder.has_replica(2) == (("orders-0", 2) in sum_of.replicas)
        return {node for _, node in sum_of.replicas}

    assert replicas_after(told(state(2, end=3)), 1, 2) == {1, 2}
    assert replicas_after(told(None), 1, 2) == {1, 2}  # The broker has just started.
    assert replicas_after(told(state(2, end=3)), 1, 3) == {1, 2}  # It is not deleted yet.
    assert replicas_after(told(None), 1, 3) == {1}
    assert replicas_after(told(state(2, end=0)), 1, 2, 3) == {1, 2}  # It is moved back.
    assert sum_of.replicas["orders-0", 2].end == 0
    assert replicas_after(None, 1, 3) == {1}
    (removed,) = recorder.add(2, {1: None}, assigned=())[1:]
    assert event_text(removed) == "b1 orders-0: has no replica any more"


def test_the_controller_is_that_of_the_highest_epoch() -> None:
    recorder = LiveRecorder("orders-0")

    def told_after(*controllers: tuple[int, int | None]) -> list[int | None]:
        answers = {node: told(controller=each) for node, each in enumerate(controllers)}
        return [event.broker for event in recorder.add(1, answers)]

    assert told_after((7, 1), (7, 1)) == [1]
    assert told_after((7, 1), (7, None), (7, 1)) == [None]
    assert told_after((7, None), (8, 2), (7, 1)) == [2]
    assert told_after((7, 1), (8, 2)) == []  # The first is cut off.


def test_losses_are_told_once() -> None:
    recorder = LiveRecorder("orders-0")
    facts = {"partition": "orders-0", "broker": 2, "epoch": 3, "ranges": []}
    losses = [
        {"kind": "records lost", "at_ms": 1, "facts": facts},
        {"kind": "records lost", "at_ms": 1, "facts": {**facts, "partition": "other-0"}},
    ]
    assert kinds(recorder.add(1, {}, losses=losses)) == ["loss"]
    assert recorder.add(2, {}, losses=losses) == []
