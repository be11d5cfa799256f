"""Random events: invariants of groups, H0 after each, and everybody is answered in the end."""

from random import Random

import pytest
from kio.schema.errors import ErrorCode

from suwi.group.classic_group import ClassicState
from tests.group.driver import GROUP, Driver

SUBSCRIPTIONS = [b"a", b"b"]
NAMES = ["range", "sticky", "cooperative"]


class Clients:
    """Members and strangers that do whatever comes to their mind."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        delay_ms = self.random.choice([0, 0, 3_000])
        self.driver = Driver(delay_ms=delay_ms, size_max=self.random.choice([3, 100]), seed=seed)
        self.committed = -1

    def member(self) -> str:
        group = self.driver.machine.groups.classic.get(GROUP)
        known = [*group.members, *group.pending_members] if group is not None else []
        return self.random.choice([*known, *known, "stranger"])

    def instance(self) -> str | None:
        return self.random.choice([None, None, "pod-1", "pod-2"])

    def protocols(self) -> list[tuple[str, bytes]]:
        names = self.random.sample(NAMES, self.random.randint(1, 3))
        return [(name, self.random.choice(SUBSCRIPTIONS)) for name in names]

    def step(self) -> None:
        getattr(self, self.random.choice(STEPS))()

    def join_new(self) -> None:
        self.driver.join(
            instance=self.instance(),
            protocols=self.protocols(),
            known_id=self.random.random() < 0.5,
            skips=self.random.random() < 0.5,
        )

    def join_again(self) -> None:
        member_id = self.member()
        group = self.driver.machine.groups.classic.get(GROUP)
        member = group.members.get(member_id) if group is not None else None
        instance, protocols = self.instance(), self.protocols()
        if member is not None and self.random.random() < 0.8:
            instance = member.instance_id
            protocols = [(each.name, each.metadata) for each in member.protocols]
        self.driver.join(member_id, instance=instance, protocols=protocols)

    def sync(self) -> None:
        group = self.driver.machine.groups.classic.get(GROUP)
        ids = list(group.members) if group is not None else []
        self.driver.sync(self.member(), {each: each.encode() for each in ids})

    def heartbeat(self) -> None:
        self.driver.heartbeat(self.member())

    def leave(self) -> None:
        if self.random.random() < 0.3:
            self.driver.leave("", instance=self.instance())
        else:
            self.driver.leave(*{self.member(), self.member()})

    def commit(self) -> None:
        group = self.driver.machine.groups.classic.get(GROUP)
        generation = group.generation if group is not None else 0
        old = max(0, generation - 1)
        member_id = self.member()
        asked = self.random.choice([generation, generation, old, -1])
        error = self.driver.commit(self.committed + 1, member_id=member_id, generation=asked)
        if error == ErrorCode.none:
            self.committed += 1
            is_empty = group is None or group.state is ClassicState.EMPTY
            assert asked == generation or (asked == -1 and is_empty)
            assert asked == -1 or (group is not None and member_id in group.members)
        if self.committed >= 0:
            assert self.driver.offset() == self.committed

    def sleep(self) -> None:
        self.driver.sleep(self.random.choice([100, 1_000, 7_000, 31_000]))

    def delete(self) -> None:
        if self.driver.delete_group() == ErrorCode.none:
            self.committed = -1
            assert self.driver.offset() is None

    def fail_over(self) -> None:
        self.driver.fail_over(compacted=self.random.random() < 0.5)

    def resign(self) -> None:
        self.driver.resign_and_return()


STEPS = (
    ["join_new"] * 6
    + ["join_again"] * 8
    + ["sync"] * 8
    + ["heartbeat", "leave", "commit", "commit", "sleep", "sleep"]
    + ["delete", "fail_over", "resign"]
)


@pytest.mark.parametrize("seed", range(150))
def test_whatever_members_do_their_group_is_what_the_log_says_and_all_are_answered(
    seed: int,
) -> None:
    clients = Clients(seed)
    for _ in range(60):
        clients.step()
    driver = clients.driver
    # Nobody sends anything any more: first new members expire, then all sessions do.
    driver.sleep(700_000)
    assert not driver.waiting
    group = driver.machine.groups.classic.get(GROUP)
    assert group is None or group.state is ClassicState.EMPTY
    driver.sleep(2_000_000)
    assert driver.machine.groups.classic == {}
    assert list(driver.machine.offsets.groups()) == []
