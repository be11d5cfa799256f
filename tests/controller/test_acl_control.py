"""Access rules are written in the order of the request, and each is told what became of it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from suwi.controller.acl_control import AclControl
from suwi.controller.metadata_writer import MetadataWriter
from suwi.metadata.image import ClusterImage, ImageBuilder
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import WRITE_BYTES_MAX, Operation, values_of, write_bytes
from suwi.model.errors import RequestTimedOut
from suwi.model.features import ACL_VERSION
from suwi.security.acls import (
    AclBinding,
    AclFilter,
    PatternType,
    Permission,
    ResourceType,
)
from suwi.security.acls import Operation as Right


class Store:
    """Writer and follower. Some writes fail: then nothing is written."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.image = ClusterImage()
        self.writes: list[Sequence[Operation]] = []
        self.fails_after = fails_after
        self._builder = ImageBuilder()

    async def run_exclusively(self, decide: Callable[[], Awaitable[Any]]) -> Any:
        return await decide()

    async def write(self, operations: Sequence[Operation]) -> None:
        if len(self.writes) == self.fails_after:
            raise RequestTimedOut("the store is away")
        self.writes.append(operations)
        self.image = self._builder.apply(len(self.writes), values_of(operations))


def control(store: Store) -> AclControl:
    return AclControl(cast(MetadataWriter, store), cast(MetadataFollower, store))


def rules(count: int, name: str = "topic-") -> list[AclBinding]:
    return [
        AclBinding(
            ResourceType.TOPIC,
            PatternType.LITERAL,
            f"{name}{number}",
            "User:alice",
            "*",
            Right.READ,
            Permission.ALLOW,
        )
        for number in range(count)
    ]


def test_some_hundred_rules_are_one_write_with_their_feature() -> None:
    store = Store()
    assert asyncio.run(control(store).create(rules(500))) == [None] * 500
    assert len(store.writes) == 1
    assert store.image.features.level(ACL_VERSION) == 1


def test_a_request_that_fails_midway_has_created_its_first_rules() -> None:
    store, asked = Store(fails_after=2), rules(2000)
    broken = asked[700]._replace(principal="alice")
    results = asyncio.run(control(store).create([*asked[:700], broken, *asked[700:]]))
    created = results.index(next(r for r in results if isinstance(r, RequestTimedOut)))
    assert 0 < created < 2000
    assert set(store.image.acls) == {
        rule
        for rule, problem in zip([*asked[:700], broken, *asked[700:]], results, strict=True)
        if problem is None
    }
    assert all(isinstance(result, RequestTimedOut) for result in results[created:])


def test_a_write_is_never_larger_than_the_store_takes() -> None:
    store, long = Store(), "x" * 2000
    assert set(asyncio.run(control(store).create(rules(1000, long)))) == {None}
    assert len(store.writes) > 2
    assert all(write_bytes(each) <= WRITE_BYTES_MAX for each in store.writes)
    (deleted,) = asyncio.run(control(store).delete([AclFilter()]))
    assert not isinstance(deleted, Exception)
    assert {problem for _, problem in deleted} == {None}
    assert not store.image.acls


def test_each_rule_of_a_filter_is_told_whether_it_was_deleted() -> None:
    store = Store()
    asyncio.run(control(store).create(rules(1200)))
    store.fails_after = len(store.writes) + 1
    some, none = asyncio.run(control(store).delete([AclFilter(), AclFilter(name="topic-1199")]))
    assert not isinstance(some, Exception)
    assert not isinstance(none, Exception)
    left = {rule for rule, problem in some if problem is not None}
    assert left == set(store.image.acls)
    assert 0 < len(left) < 1200
    assert [rule.name for rule, _ in none] == ["topic-1199"]


def test_filters_after_a_failure_are_not_tried() -> None:
    store = Store()
    asyncio.run(control(store).create(rules(50)))
    store.run_exclusively = _failing(store.run_exclusively, calls=1)  # type: ignore[method-assign]
    asked = [AclFilter(name=f"topic-{number}") for number in range(41)]
    results = asyncio.run(control(store).delete(asked))
    assert [isinstance(each, RequestTimedOut) for each in results] == [False] * 20 + [True] * 21
    assert len(list(store.image.acls)) == 30


def _failing(run: Callable[..., Awaitable[Any]], calls: int) -> Callable[..., Awaitable[Any]]:
    made = 0

    async def fails(decide: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal made
        made += 1
        if made > calls:
            raise RequestTimedOut("the store is away")
        return await run(decide)

    return fails
