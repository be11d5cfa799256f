"""LeaveGroup of many members is one event: a retry finds all of them gone, or none."""

import asyncio
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call, Event
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.env.slices import Slices
from suwi.handlers.leave_group import LeaveGroup
from suwi.handlers.slices import SLICE_PARTITIONS
from suwi.net.answers import Later
from suwi.wire.versions import ApiKey
from tests.group.driver import Driver
from tests.handlers.requests import request, response_to

MEMBERS = 10 * SLICE_PARTITIONS


class CountingShard:
    """Carries events out at once, and counts them and their slices."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.slices: list[int] = []

    def submit(self, call: Call[Any]) -> None:
        event = Event(self._driver.now_ms, call)
        decided = call.decide(self._driver.machine, event)
        self.slices.append(1 + sum(1 for _ in decided or ()))
        for answered, response in event.replies:
            if answered is call:
                call.resolve(response)


class WaitingShard:
    """Keeps a call until the test answers it."""

    def submit(self, call: Call[Any]) -> None:
        self.call = call


class OneShard(CoordinatorRuntime[Any]):
    """A runtime all of whose groups are in one shard."""

    def __init__(self, shard: Any) -> None:
        self._shard_of_all = shard

    def shard_of(self, key: str) -> Any:
        return self._shard_of_all


def leave(shard: Any, ids: list[str]) -> Any:
    members = [{"member_id": each, "group_instance_id": None, "reason": None} for each in ids]

    async def scenario() -> Any:
        asked = request(ApiKey.LEAVE_GROUP, 5, {"group_id": "g", "members": members})
        return await response_to(asked, LeaveGroup(OneShard(shard))(asked))

    return asyncio.run(scenario())


def test_many_members_leave_in_one_event_of_several_slices() -> None:
    driver = Driver(delay_ms=3_000, size_max=MEMBERS)
    driver.is_checked = False
    for _ in range(MEMBERS):
        driver.join()
    ids = list(driver.group.members)
    assert len(ids) == MEMBERS
    shard = CountingShard(driver)
    answer = leave(shard, ids)
    assert [each.member_id for each in answer.members] == ids
    assert {each.error_code for each in answer.members} == {ErrorCode.none}
    assert len(shard.slices) == 1
    assert shard.slices[0] > 1


def test_the_members_of_a_group_that_is_not_there_are_unknown() -> None:
    driver = Driver()
    answer = leave(CountingShard(driver), [f"m{number}" for number in range(MEMBERS)])
    assert len(answer.members) == MEMBERS
    assert {each.error_code for each in answer.members} == {ErrorCode.unknown_member_id}


def test_a_response_that_cannot_be_encoded_costs_this_request_alone() -> None:
    """The exception must not reach the shard, which delivers the replies of others."""

    class Broken(LeaveGroup):
        def encode(self, request: Any, response: Any) -> Any:
            if isinstance(response, ErrorCode):
                return super().encode(request, response)
            return self._in_slices()

        def _in_slices(self) -> Slices[Any]:
            yield from ()
            raise ZeroDivisionError

    shard = WaitingShard()

    async def scenario() -> Any:
        members = [{"member_id": "m", "group_instance_id": None, "reason": None}]
        asked = request(ApiKey.LEAVE_GROUP, 5, {"group_id": "g", "members": members})
        answer = Broken(OneShard(shard))(asked)
        assert isinstance(answer, Later)
        shard.call.resolve([ErrorCode.none])
        return await response_to(asked, answer)

    assert asyncio.run(scenario()).error_code is ErrorCode.unknown_server_error


def test_an_error_of_the_coordinator_is_said_once() -> None:
    def submit(_call: Call[Any]) -> None:
        raise RuntimeError

    answer = leave(SimpleNamespace(submit=submit), ["m"] * MEMBERS)
    assert (answer.error_code, answer.members) == (ErrorCode.unknown_server_error, ())
