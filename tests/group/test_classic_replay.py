"""Records of classic groups, replayed one after the other: only the last one counts."""

from dataclasses import replace

from suwi.group.classic_group import ClassicGroup
from suwi.group.classic_group_records import GroupMetadataValue, MemberMetadata

MEMBER = MemberMetadata("m", "i", "client", "/127.0.0.1", 30_000, 10_000, b"orders", b"0")
VALUE = GroupMetadataValue("consumer", 1, "range", "m", 5, (MEMBER,))


def replayed(*values: GroupMetadataValue) -> ClassicGroup:
    group = ClassicGroup("g")
    for value in values:
        group.apply(value)
    return group


def test_a_member_that_subscribes_anew_is_replayed_with_its_new_subscription() -> None:
    changed = replace(MEMBER, subscription=b"refunds", session_timeout_ms=9, client_host="/::1")
    second = replace(VALUE, generation=2, members=(changed,))
    assert replayed(VALUE, second).value() == replayed(second).value() == second


def test_a_group_that_changes_its_protocol_is_replayed_with_the_new_one() -> None:
    second = replace(VALUE, generation=2, protocol="sticky")
    assert replayed(VALUE, second).value() == replayed(second).value() == second
