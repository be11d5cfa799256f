"""The valid prefix of a segment: regular batches are accepted many at a time, or one by one."""

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from suwi.log.file_cache import FileCache
from suwi.log.segment import Segment
from suwi.log.valid_prefix import ValidPrefix
from suwi.model.ids import LeaderEpoch, Offset
from suwi.records.batch import CONTROL_BIT, BatchHeader, read_header
from suwi.sim import SimDisk
from tests.log.kit import batch_of

Batches = list[tuple[int, BatchHeader]]

# Mostly valid batches, and occasionally invalid ones.
_STEPS = st.sampled_from([0, 0, 0, 0, 0, 0, 1, 5, -1, -4, 2**31])
_EPOCH_STEPS = st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, -1, 7])
_DELTAS = st.sampled_from([0, 0, 0, 1, 9, -1, 2**31 - 1])
_COUNTS = st.sampled_from([1, 1, 1, 1, 1, 0, -1])
_ATTRIBUTES = st.sampled_from([0, 0, 0, 0, 0, CONTROL_BIT])


@st.composite
def any_batches(draw: st.DrawFn) -> Batches:
    sample = read_header(batch_of())
    found, position, offset, epoch = [], 0, 0, 0
    for _ in range(draw(st.integers(0, 12))):
        offset += draw(_STEPS)
        epoch += draw(_EPOCH_STEPS)
        header = sample._replace(
            base_offset=offset,
            partition_leader_epoch=epoch,
            last_offset_delta=draw(_DELTAS),
            record_count=draw(_COUNTS),
            attributes=draw(_ATTRIBUTES),
            batch_length=draw(st.integers(49, 3_000)),
            max_timestamp=draw(st.integers(-1, 20)),
        )
        found.append((position, header))
        position += header.size_bytes
        offset = header.next_offset
    return found


def _prefix() -> ValidPrefix:
    return ValidPrefix(Offset(0), -1, {LeaderEpoch(1): Offset(3)}, LeaderEpoch(2))


@given(any_batches())
def test_the_same_batches_are_accepted_many_at_a_time_as_one_by_one(batches: Batches) -> None:
    singly, together = _prefix(), _prefix()
    accepted = 0
    for position, header in batches:
        if not singly.accept(position, header):
            break
        accepted += 1
    number = 0
    while number < len(batches):
        usual_end = together.accept_usual(batches, number)
        if usual_end == number:
            if not together.accept(*batches[number]):
                break
            usual_end += 1
        number = usual_end
    assert number == accepted
    assert together == singly


@given(any_batches())
def test_no_control_batch_is_accepted_before_its_record_is_read(batches: Batches) -> None:
    prefix = _prefix()
    for number in range(len(batches)):
        end = prefix.accept_usual(batches, number)
        assert not any(header.is_control for _, header in batches[number:end])


@given(any_batches(), st.data())
def test_noting_many_batches_at_a_time_builds_the_same_indexes(
    batches: Batches, data: st.DataObject
) -> None:
    batches = list(takewhile(lambda batch: 0 <= batch[1].last_offset < 2**31, batches))
    segments = []
    for name in ("/singly", "/together"):
        disk = SimDisk()
        disk.make_dirs(name)
        files = FileCache(disk, 10)
        segments.append(
            Segment(files, name, Offset(0), index_interval_bytes=2_000, created_ms=0, create=True)
        )
    singly, together = segments
    for position, header in batches:
        singly.note(position, header)
    number = 0
    while number < len(batches):
        end = data.draw(st.integers(number + 1, len(batches)))
        together.note_all(batches[number:end])
        number = end
    states = []
    for segment in segments:
        offsets, times = segment.offset_index, segment.time_index
        states.append(
            (
                segment.size_bytes,
                segment.next_offset,
                segment.max_timestamp,
                segment._max_timestamp_offset,
                segment.first_timestamp,
                segment._index_bytes,
                segment._bytes_since_index_entry,
                segment._last_base_offset,
                segment._last_position,
                [offsets.entry(n) for n in range(len(offsets))],
                [times.entry(n) for n in range(len(times))],
            )
        )
    assert states[0] == states[1]
