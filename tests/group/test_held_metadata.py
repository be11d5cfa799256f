"""What members hold in memory is bounded by the record of their group, and for all groups beyond
their records (hazard G16)."""

from unittest.mock import patch

from kio.schema.errors import ErrorCode

from suwi.group import classic_coordinator
from tests.group.driver import GROUP, SESSION_MS, Driver
from tests.group.wire import Wire, on_broker

ROOM = 10_000
FULL = ErrorCode.group_max_size_reached
LATER = ErrorCode.coordinator_load_in_progress


def a_driver() -> Driver:
    driver = Driver(delay_ms=3_000)
    driver.batch_bytes_max = ROOM
    return driver


def error_of(driver: Driver, token: object) -> ErrorCode | None:
    """None while the join waits."""
    response = driver.replies.get(token)  # type: ignore[call-overload]
    return response.error if response is not None else None


def test_a_member_that_the_record_of_its_group_has_no_room_for_is_refused() -> None:
    driver = a_driver()
    token = driver.join(protocols=[("range", b"m" * (ROOM + 1))])
    assert error_of(driver, token) is FULL
    assert driver.machine.groups.classic == {}
    assert driver.timers.keys() == {("expiry",)}
    assert driver.machine.held_beyond_records.total == 0


def test_members_that_have_no_room_together_are_refused_and_the_others_stay() -> None:
    driver = a_driver()
    for _ in range(3):
        assert error_of(driver, driver.join(protocols=[("range", b"m" * 3_000)])) is None
    assert error_of(driver, driver.join(protocols=[("range", b"m" * 3_000)])) is FULL
    assert len(driver.group.members) == 3
    assert error_of(driver, driver.join(protocols=[("range", b"s")])) is None


def test_a_member_that_joins_again_with_more_than_there_is_room_for_stays_as_it_was() -> None:
    driver = a_driver()
    driver.join(protocols=[("range", b"m" * 3_000)])
    driver.sleep(3_000)
    (member_id,) = driver.group.members
    driver.sync(member_id, {})
    again = driver.join(member_id, protocols=[("range", b"m" * (ROOM + 1))])
    assert error_of(driver, again) is FULL
    assert driver.group.members[member_id].protocols[0].metadata == b"m" * 3_000
    assert driver.heartbeat(member_id) is ErrorCode.none


def test_protocols_that_are_not_in_use_count_too() -> None:
    driver = a_driver()
    protocols = [(f"p{number}", b"m" * 5_000) for number in range(9)]
    assert error_of(driver, driver.join(protocols=protocols)) is FULL
    assert error_of(driver, driver.join(protocols=protocols[:4])) is None


def test_what_members_hold_that_never_complete_is_released_with_their_timers() -> None:
    driver = a_driver()
    driver.join(known_id=True)
    assert driver.machine.held_beyond_records.total > 0
    driver.sleep(SESSION_MS)
    assert driver.machine.held_beyond_records.total == 0
    driver.join(protocols=[("range", b"m" * 3_000)])
    assert driver.machine.held_beyond_records.total > 3_000
    driver.sleep(3_000_000)
    assert driver.machine.held_beyond_records.total == 0


def test_all_groups_without_a_record_have_a_bound_together() -> None:
    with patch.object(classic_coordinator, "_HELD_BYTES_MAX", 10_000):
        driver = a_driver()
        for number in range(3):
            token = driver.join(group=f"g{number}", protocols=[("range", b"m" * 3_000)])
            assert error_of(driver, token) is None
        refused = driver.join(protocols=[("range", b"m" * 3_000)])
        assert error_of(driver, refused) is LATER
        assert GROUP not in driver.machine.groups.classic
        # One of them gets its record.
        driver.sleep(3_000)
        (member_id,) = driver.machine.groups.classic["g0"].members
        driver.sync(member_id, {}, group="g0")
        assert error_of(driver, driver.join(protocols=[("range", b"m" * 3_000)])) is None


def settled(driver: Driver, group: str, protocols: list[tuple[str, bytes]]) -> str:
    """A member whose group has a record."""
    driver.join(group=group, protocols=protocols)
    driver.sleep(3_000)
    (member_id,) = driver.machine.groups.classic[group].members
    driver.sync(member_id, {}, group=group)
    return member_id


def test_groups_that_have_a_record_share_the_bound_for_what_is_not_in_it() -> None:
    with patch.object(classic_coordinator, "_HELD_BYTES_MAX", 10_000):
        driver = a_driver()
        ids = {f"g{n}": settled(driver, f"g{n}", [("range", b"s")]) for n in range(4)}
        for group, member_id in ids.items():
            driver.leave(member_id, group=group)
        large = [("range", b"m" * 3_000)]
        for group in ("g0", "g1", "g2"):
            assert error_of(driver, driver.join(group=group, protocols=large)) is None
        assert error_of(driver, driver.join(group="g3", protocols=large)) is LATER
        # One of them gets its record.
        driver.sleep(3_000)
        (member_id,) = driver.machine.groups.classic["g0"].members
        driver.sync(member_id, {}, group="g0")
        assert error_of(driver, driver.join(group="g3", protocols=large)) is None


def test_a_member_that_joins_again_with_much_more_than_its_record_counts() -> None:
    with patch.object(classic_coordinator, "_HELD_BYTES_MAX", 10_000):
        driver = a_driver()
        ids = {f"g{n}": settled(driver, f"g{n}", [("range", b"s")]) for n in range(4)}
        large = [("range", b"m" * 3_000)]
        errors = [
            error_of(driver, driver.join(member_id, group=group, protocols=large))
            for group, member_id in ids.items()
        ]
        assert LATER not in errors[:3]
        assert errors[3] is LATER
        # It stays a member, with what it had.
        assert driver.machine.groups.classic["g3"].members[ids["g3"]].protocols[0].metadata == b"s"


def test_large_protocols_beside_a_small_one_in_the_record_count() -> None:
    with patch.object(classic_coordinator, "_HELD_BYTES_MAX", 10_000):
        driver = a_driver()
        protocols = [("small", b"s"), ("large", b"m" * 3_000)]
        for number in range(3):
            settled(driver, f"g{number}", protocols)
        assert error_of(driver, driver.join(protocols=protocols)) is LATER


def test_protocols_of_the_same_size_as_the_one_in_the_record_are_not_counted() -> None:
    driver = a_driver()
    member_id = settled(driver, GROUP, [("range", b"m" * 500), ("sticky", b"m" * 600)])
    assert driver.machine.held_beyond_records.total == 0
    driver.join(member_id, protocols=[("range", b"m" * 900), ("sticky", b"m" * 900)])
    assert driver.machine.held_beyond_records.total == 0


def test_a_replica_that_resigns_holds_nothing_more() -> None:
    driver = a_driver()
    driver.join(protocols=[("range", b"m" * 3_000)])
    driver.machine.resigned()
    assert driver.machine.held_beyond_records.total == 0


def test_forty_joins_of_megabytes_are_refused_over_the_wire() -> None:
    async def scenario(wire: Wire) -> None:
        for number in range(40):
            large = (("range", b"m" * (7 << 20)),)
            joined = await wire.join(3, group=f"g{number}", protocols=large, client=wire.client)
            assert joined.error_code == FULL
        assert wire.broker.broker is not None
        shards = wire.broker.broker.groups.runtime.active()
        assert sum(shard.machine.held_beyond_records.total for shard in shards) == 0
        many = tuple((f"p{number}", b"") for number in range(1_001))
        joined = await wire.join(3, protocols=many, client=wire.client)
        assert joined.error_code == ErrorCode.invalid_request

    on_broker(scenario)
