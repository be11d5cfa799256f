"""Records of `__consumer_offsets`: what is written can be read; other bytes are named as such."""

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from suwi.coordinator.record import Codec, CoordinatorRecord
from suwi.group import classic_group_records as classic
from suwi.group import consumer_group_records as group
from suwi.group.classic_group import Committer
from suwi.group.consumer_group_records import TopicPartitions
from suwi.group.group_coordinator_shard import GROUP_RECORDS
from suwi.group.offset_records import OFFSET_RECORDS, OffsetCommitKey, OffsetCommitValue
from suwi.group.offset_requests import CheckedTopic, CommitRequest
from suwi.metadata.image import Topic
from suwi.model.ids import NO_TIMESTAMP, TopicId
from suwi.wire.errors import MalformedMessage

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=8)
NULLABLE = st.none() | TEXT
BYTES = st.binary(max_size=8)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
TOPIC_IDS = st.integers(1, 2**128 - 1).map(lambda number: TopicId(UUID(int=number)))
PARTITIONS = st.lists(
    st.builds(TopicPartitions, TOPIC_IDS, st.lists(INT32, max_size=3).map(tuple)), max_size=3
).map(tuple)
CLASSIC = st.none() | st.builds(
    group.ClassicMemberMetadata,
    INT32,
    st.lists(st.builds(group.Protocol, TEXT, BYTES), max_size=3).map(tuple),
)
MEMBERS = st.lists(
    st.builds(
        classic.MemberMetadata,
        TEXT,
        NULLABLE,
        TEXT,
        TEXT,
        st.integers(0, 2**31 - 1),
        INT32,
        BYTES,
        BYTES,
    ),
    max_size=3,
).map(tuple)
OFFSETS = st.none() | st.builds(
    OffsetCommitValue, INT64, INT32, TEXT, INT64, st.just(NO_TIMESTAMP), TOPIC_IDS
)
RECORDS = st.one_of(
    st.tuples(st.builds(OffsetCommitKey, TEXT, TEXT, INT32), OFFSETS),
    st.tuples(
        st.builds(classic.GroupMetadataKey, TEXT),
        st.builds(classic.GroupMetadataValue, TEXT, INT32, NULLABLE, NULLABLE, INT64, MEMBERS),
    ),
    st.tuples(
        st.builds(group.ConsumerGroupMetadataKey, TEXT),
        st.builds(group.ConsumerGroupMetadataValue, INT32, INT64),
    ),
    st.tuples(
        st.builds(group.ConsumerGroupMemberMetadataKey, TEXT, TEXT),
        st.builds(
            group.ConsumerGroupMemberMetadataValue,
            NULLABLE,
            NULLABLE,
            TEXT,
            TEXT,
            TEXTS,
            NULLABLE,
            INT32,
            NULLABLE,
            CLASSIC,
        ),
    ),
    st.tuples(
        st.builds(group.ConsumerGroupTargetAssignmentMetadataKey, TEXT),
        st.builds(group.ConsumerGroupTargetAssignmentMetadataValue, INT32, INT64),
    ),
    st.tuples(
        st.builds(group.ConsumerGroupTargetAssignmentMemberKey, TEXT, TEXT),
        st.builds(group.ConsumerGroupTargetAssignmentMemberValue, PARTITIONS),
    ),
    st.tuples(
        st.builds(group.ConsumerGroupCurrentMemberAssignmentKey, TEXT, TEXT),
        st.builds(
            group.ConsumerGroupCurrentMemberAssignmentValue,
            INT32,
            INT32,
            st.integers(-128, 127),
            PARTITIONS,
            PARTITIONS,
        ),
    ),
    st.tuples(
        st.builds(group.ConsumerGroupRegularExpressionKey, TEXT, TEXT),
        st.builds(group.ConsumerGroupRegularExpressionValue, TEXTS, INT64, INT64),
    ),
).map(lambda pair: CoordinatorRecord(*pair))


@given(RECORDS)
def test_what_is_written_can_be_read(record: CoordinatorRecord) -> None:
    assert GROUP_RECORDS.decode(*GROUP_RECORDS.encode(record)) == record


def test_assignment_epochs_stand_beside_their_partitions() -> None:
    assigned = (TopicPartitions(TopicId(UUID(int=1)), (0, 2), (3, 4)),)
    value = group.ConsumerGroupCurrentMemberAssignmentValue(5, 4, 1, assigned, ())
    record = CoordinatorRecord(group.ConsumerGroupCurrentMemberAssignmentKey("g", "m"), value)
    assert GROUP_RECORDS.decode(*GROUP_RECORDS.encode(record)) == record


def test_an_offset_with_an_expiry_of_its_own_is_written_in_version_1() -> None:
    value = OffsetCommitValue(7, -1, "m", 100, expire_timestamp_ms=200)
    assert value.encode()[:2] == b"\0\1"
    record = CoordinatorRecord(OffsetCommitKey("g", "t", 0), value)
    assert GROUP_RECORDS.decode(*GROUP_RECORDS.encode(record)) == record


def test_an_offset_with_an_expiry_of_its_own_is_decided_as_its_record_can_say_it() -> None:
    """Version 1 has no topic id: memory must not know more than what a replay gives."""
    topic = Topic("t", TopicId(UUID(int=1)), {}, ())
    checked = [CheckedTopic("t", topic, [(0, 7, -1, "m")], [ErrorCode.none])]
    (commit,) = CommitRequest(Committer("g"), checked, retention_ms=100).offsets(100)
    assert commit.value.expire_timestamp_ms == 200
    record = CoordinatorRecord(OffsetCommitKey("g", "t", 0), commit.value)
    assert GROUP_RECORDS.decode(*GROUP_RECORDS.encode(record)) == record


def test_a_record_type_that_is_not_known_here_is_left_alone() -> None:
    assert GROUP_RECORDS.decode(struct.pack(">h", 11), b"whatever") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"\0\2\0\5ab", None),
        (b"\0\2\0\1g", b"\0\x09"),
        (b"\0\2\0\1g", b"\0\3\0\1"),
        (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\4\0"),
    ],
)
def test_bytes_that_are_no_record_are_named_as_such(key: bytes, value: bytes | None) -> None:
    with pytest.raises(MalformedMessage):
        GROUP_RECORDS.decode(key, value)


@given(
    st.builds(OffsetCommitKey, TEXT, TEXT, INT32),
    OFFSETS.filter(lambda value: value is not None),
    st.booleans(),
    st.integers(0, 60),
    st.booleans(),
)
def test_an_offset_is_read_in_one_piece_as_step_by_step(
    key: OffsetCommitKey, value: OffsetCommitValue, has_metadata: bool, cut_to: int, cuts_key: bool
) -> None:
    written = value._replace(metadata=value.metadata if has_metadata else "").encode()
    step_by_step = Codec(
        {number: type_._replace(read_plain=None) for number, type_ in OFFSET_RECORDS.items()}
    )
    cut = (key.encode()[:cut_to], written) if cuts_key else (key.encode(), written[:cut_to])
    for data in ((key.encode(), written), cut):
        found = []
        for codec in (GROUP_RECORDS, step_by_step):
            try:
                found.append(codec.decode(*data))
            except MalformedMessage:
                found.append(None)
        assert found[0] == found[1]


@given(st.builds(OffsetCommitKey, TEXT, TEXT, INT32), st.integers(0, 60))
def test_a_key_that_was_cut_off_is_malformed(key: OffsetCommitKey, cut_to: int) -> None:
    written = key.encode()
    if cut_to < len(written):
        with pytest.raises(MalformedMessage):
            GROUP_RECORDS.decode(written[:cut_to], None)
