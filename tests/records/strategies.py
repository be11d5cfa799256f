"""Hypothesis strategies for records and codecs."""

from hypothesis import strategies as st

from suwi.model.ids import NO_OFFSET
from suwi.records.compression import Compression
from suwi.records.record import Record

codecs = st.sampled_from(list(Compression))
maybe_bytes = st.none() | st.binary(max_size=100)
timestamps = st.integers(min_value=0, max_value=2**45)
headers = st.lists(st.tuples(st.text(max_size=10), maybe_bytes), max_size=2).map(tuple)


def record_lists(
    timestamps: st.SearchStrategy[int] = timestamps,
) -> st.SearchStrategy[list[Record]]:
    """At least one record, without explicit offsets."""
    record = st.builds(
        Record,
        offset=st.just(NO_OFFSET),
        timestamp=timestamps,
        key=maybe_bytes,
        value=maybe_bytes,
        headers=headers,
    )
    return st.lists(record, min_size=1, max_size=6)
