"""Replies that peers do not read: what they may cost all together, and who has to go."""

from suwi.net.answers import Answer, Reply
from suwi.net.limits import Limits
from tests.net.support import (
    Waits,
    answering,
    connect,
    replies,
    request,
    run,
    settle,
    timeless_budget,
)


def _large(correlation_id: int, payload: memoryview) -> Answer:
    return Reply([bytes(10_000)])


def test_unread_replies_are_capped_over_all_connections() -> None:
    async def scenario() -> None:
        budget = timeless_budget(Limits(in_flight_bytes_max=50_000, unsent_bytes_max=200_000))
        wires = []
        for peer in range(100):
            _, wire = connect(answering(_large), budget=budget, room_bytes=0)
            wires.append(wire)
            for i in range(1 + peer % 3):
                wire.deliver(request(i))
            await settle()
            assert budget.unsent_budget.total_bytes <= 200_000
        assert any(wire.lost for wire in wires)
        assert not wires[-1].lost or not wires[-2].lost, "those that hold little stay"
        for wire in wires:
            wire.abort()
        await settle()
        assert budget.unsent_budget.total_bytes == 0

    run(scenario)


def test_who_holds_most_has_to_go() -> None:
    async def scenario() -> None:
        budget = timeless_budget(Limits(unsent_bytes_max=100_000))
        _, greedy = connect(answering(_large), budget=budget, room_bytes=0)
        for i in range(6):
            greedy.deliver(request(i))
        modest = [connect(answering(_large), budget=budget, room_bytes=0)[1] for _ in range(5)]
        for wire in modest:
            wire.deliver(request(1))
        await settle()
        assert greedy.lost
        assert not any(wire.lost for wire in modest)
        for wire in modest:
            wire.take(20_000)
            assert replies(wire.sent) == [(1, bytes(10_000))]
        assert budget.unsent_budget.total_bytes == 0

    run(scenario)


def test_those_who_read_are_served_while_others_do_not() -> None:
    async def scenario() -> None:
        budget = timeless_budget(Limits(unsent_bytes_max=100_000))
        lazy = [connect(answering(_large), budget=budget, room_bytes=0)[1] for _ in range(9)]
        for wire in lazy:
            wire.deliver(request(1))
        _, quick = connect(answering(_large), budget=budget)
        for i in range(50):
            quick.deliver(request(i))
        assert [c for c, _ in replies(quick.sent)] == list(range(50))
        await settle()
        assert not quick.lost
        assert not any(wire.lost for wire in lazy)

    run(scenario)


def test_when_much_is_unread_those_who_owe_start_nothing_new() -> None:
    async def scenario() -> None:
        budget = timeless_budget(Limits(unsent_bytes_max=100_000))
        wires = [connect(answering(_large), budget=budget, room_bytes=0)[1] for _ in range(6)]
        for wire in wires:
            wire.deliver(request(0))
        for wire in wires:
            wire.deliver(request(1) + request(2))
        await settle()
        assert budget.unsent_budget.total_bytes < 75_000
        assert not any(wire.lost for wire in wires)
        # They go on as soon as they have read what was theirs.
        for wire in wires:
            for _ in range(20):
                wire.take(5_000)
                await settle()
            assert [c for c, _ in replies(wire.sent)] == [0, 1, 2]
        assert budget.unsent_budget.total_bytes == 0

    run(scenario)


def test_what_the_transport_has_not_handed_over_counts_as_well() -> None:
    async def scenario() -> None:
        budget = timeless_budget(Limits())
        connection, wire = connect(answering(_large), budget=budget, room_bytes=4_000)
        wire.deliver(request(1))
        assert connection._output.queued_bytes == 0
        assert budget.unsent_budget.total_bytes == 10_008 - 4_000
        wire.take(10_000)
        assert budget.unsent_budget.total_bytes == 0

    run(scenario)


def test_replies_that_wait_for_an_earlier_one_count_as_well() -> None:
    async def scenario() -> None:
        budget = timeless_budget(Limits(unsent_bytes_max=50_000))
        waits = Waits()
        _, wire = connect(answering(waits), budget=budget)
        wire.deliver(request(0) + request(1))
        assert budget.unsent_budget.total_bytes == 0
        waits.end(1, bytes(10_000))
        await settle()
        assert budget.unsent_budget.total_bytes >= 10_000
        waits.end(0)
        await settle()
        assert budget.unsent_budget.total_bytes == 0
        assert [c for c, _ in replies(wire.sent)] == [0, 1]

    run(scenario)
