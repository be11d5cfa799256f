"""Records to Arrow columns: the compiled way and the plain way give the same."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from suwi.model.errors import CorruptMessage, InvalidRecord
from suwi.model.ids import NO_OFFSET, Offset, PartitionIndex, TopicPartition
from suwi.records.batch import HEADER_BYTES, batches
from suwi.records.builder import build_batch, build_marker
from suwi.records.compression import Compression
from suwi.records.record import MarkerType, Record
from suwi.spark import columns, kernel
from suwi.spark.columns import ROWS_MAX, Decoder
from suwi.spark.releases import HAS_ADMISSION_CONTROL
from suwi.spark.row_schema import MICROSECONDS_MS_MAX, arrow_schema
from suwi.wire.fetch_response import AbortedTransaction
from tests.broker_process import SOURCE

PARTITION = TopicPartition("orders", PartitionIndex(3))
END = Offset(2**62)

keys = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=5), keys), max_size=3).map(tuple)
records = st.builds(
    Record,
    offset=st.just(NO_OFFSET),
    timestamp=st.integers(-1, 2**50),
    key=keys,
    value=keys,
    headers=headers,
)


def decode(
    data: bytes, *, start: int = 0, end: int = END, include_headers: bool = True
) -> list[pa.RecordBatch]:
    decoder = Decoder(PARTITION, include_headers=include_headers)
    return list(decoder.open(memoryview(data)).decode(Offset(start), Offset(end)))


def rows_of(data: bytes, **options: int) -> list[dict[str, object]]:
    return as_rows(decode(data, **options))


def as_rows(decoded: list[pa.RecordBatch]) -> list[dict[str, object]]:
    """With times as microseconds: Python's end with the year 9999."""
    return [
        row
        for batch in decoded
        for row in batch.set_column(5, "timestamp", batch["timestamp"].cast(pa.int64())).to_pylist()
    ]


@pytest.fixture(params=["kernel", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How records are decoded."""
    use(request.param, monkeypatch)
    return str(request.param)


def use(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "kernel":
        assert kernel.load_kernel() is not None
    monkeypatch.setattr(columns, "_decoded_rows", 10**9 if way == "kernel" else -(10**9))


@given(st.lists(st.lists(records, min_size=1, max_size=20), max_size=4), st.data())
def test_both_ways_give_the_same_rows(sent: list[list[Record]], data: st.DataObject) -> None:
    stored, offset = bytearray(), 0
    for batch in sent:
        codec = data.draw(st.sampled_from(Compression))
        append_time = data.draw(st.none() | st.integers(0, 2**50))
        stored += build_batch(
            batch, base_offset=offset, codec=codec, log_append_time_ms=append_time
        )
        offset += len(batch) + data.draw(st.integers(0, 3))
    start, end = data.draw(st.integers(0, offset + 1)), data.draw(st.integers(0, offset + 1))
    with pytest.MonkeyPatch.context() as patch:
        found = {}
        for way in ("kernel", "plain"):
            use(way, patch)
            found[way] = rows_of(bytes(stored), start=start, end=end)
    assert found["kernel"] == found["plain"]
    assert [row["offset"] for row in found["plain"]] == [
        record_offset for record_offset in offsets_of(bytes(stored)) if start <= record_offset < end
    ]


def offsets_of(data: bytes) -> Iterator[int]:
    for _, header in batches(data):
        yield from range(header.base_offset, header.base_offset + header.record_count)


def test_columns_are_what_spark_expects(way: str) -> None:
    sent = [Record(timestamp=7, key=b"k", value=None, headers=(("a", None),)), Record(timestamp=-1)]
    (batch,) = decode(bytes(build_batch(sent, base_offset=5)))
    assert batch.schema == arrow_schema(include_headers=True)
    batch.validate(full=True)
    first, second = batch.to_pylist()
    assert first["headers"] == [{"key": "a", "value": None}]
    assert (first["key"], first["value"], first["timestampType"]) == (b"k", None, 0)
    assert (first["topic"], first["partition"], first["offset"]) == ("orders", 3, 5)
    assert second["headers"] is None
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [7_000, -1_000]


def test_the_arrow_schema_is_that_of_the_rows() -> None:
    zone = {"timezone": "UTC"} if HAS_ADMISSION_CONTROL else {}
    for include_headers in (False, True):
        schema = arrow_schema(include_headers=include_headers)
        assert to_arrow_schema(from_arrow_schema(schema), **zone) == schema


def test_record_batches_have_ten_thousand_rows_at_most(way: str) -> None:
    stored = b"".join(
        bytes(build_batch([Record(value=b"x")] * 5_000, base_offset=base))
        for base in range(0, 25_000, 5_000)
    )
    sizes = [batch.num_rows for batch in decode(stored, include_headers=False)]
    assert sizes == [ROWS_MAX, ROWS_MAX, 5_000]


def test_what_is_compressed_becomes_plain_a_part_at_a_time(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_GROUP_BYTES", 1_000)
    stored = b"".join(
        bytes(build_batch([Record(value=b"x" * 900)], base_offset=base, codec=codec))
        for base, codec in enumerate([Compression.ZSTD] * 3 + [Compression.NONE] * 2)
    )
    assert [batch.num_rows for batch in decode(stored)] == [2, 1, 2]


def test_a_batch_that_compaction_emptied_has_no_rows(way: str) -> None:
    empty = build_batch([], base_offset=0, last_offset=4, codec=Compression.ZSTD)
    rest = build_batch([Record(value=b"x")], base_offset=5)
    assert [row["offset"] for row in rows_of(bytes(empty + rest))] == [5]


def test_a_header_key_that_is_not_utf_8_is_shown_as_java_shows_it(way: str) -> None:
    name = b"\xff!".decode("utf-8", "surrogateescape")
    (row,) = rows_of(bytes(build_batch([Record(headers=((name, b"v"),))])))
    assert row["headers"] == [{"key": "\ufffd!", "value": b"v"}]


def test_a_time_beyond_microseconds_is_the_nearest_that_they_hold(way: str) -> None:
    sent = [Record(timestamp=1), Record(timestamp=2**62), Record(timestamp=-(2**62))]
    times = [row["timestamp"] for row in rows_of(bytes(build_batch(sent, base_offset=10)))]
    assert times == [1_000, MICROSECONDS_MS_MAX * 1000, -MICROSECONDS_MS_MAX * 1000]


@given(st.data())
def test_bytes_that_are_no_records_are_refused_or_read_alike(data: st.DataObject) -> None:
    """Any byte of the section may be wrong: the kernel stays within its bounds."""
    sent = data.draw(st.lists(records, min_size=1, max_size=5))
    stored = build_batch(sent)
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(HEADER_BYTES, len(stored) - 1))] = data.draw(
            st.integers(0, 255)
        )
    view = memoryview(bytes(stored))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for way in ("kernel", "plain"):
            use(way, patch)
            decoder = Decoder(PARTITION, include_headers=True)
            try:
                opened = decoder.open(view, check_crcs=False)
                decoded = list(opened.decode(Offset(0), END))
            except InvalidRecord as error:
                found.append([{"error": type(error)}])
            else:
                found.append(as_rows(decoded))
    assert found[0] == found[1]


def test_without_numba_records_are_decoded_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*, cached: bool) -> kernel.Kernel:
        raise ImportError("no numba here")

    monkeypatch.setattr(kernel, "_loaded", [])
    monkeypatch.setattr(kernel, "_compile", fails)
    monkeypatch.setattr(columns, "_decoded_rows", 10**9)
    stored = bytes(build_batch([Record(value=b"x")]))
    with caplog.at_level(logging.WARNING, "suwi.spark.kernel"):
        assert rows_of(stored)[0]["value"] == b"x"
        assert rows_of(stored)[0]["value"] == b"x"
    (said,) = caplog.records
    assert "without numba, more slowly: ImportError: no numba here" in said.getMessage()


def test_where_numba_cannot_keep_its_work_it_compiles_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = kernel.Kernel(
        lambda *_: (0, 0, 0, 0), lambda *_: (0, 0, 0, 0, 0), lambda *_: (0, 0, 0)
    )
    tried = []

    def compile_(*, cached: bool) -> kernel.Kernel:
        tried.append(cached)
        if cached:
            raise RuntimeError("cannot cache function: no locator available")
        return compiled

    monkeypatch.setattr(kernel, "_loaded", [])
    monkeypatch.setattr(kernel, "_compile", compile_)
    assert kernel.load_kernel() is compiled
    assert kernel.load_kernel() is compiled
    assert tried == [True, False]


@pytest.mark.parametrize("size", [1, 20, 5_000])
def test_a_checksum_that_does_not_fit_is_told(way: str, size: int) -> None:
    """Small batches are checked by the kernel, large ones by a library."""
    good = build_batch([Record(value=b"x" * size)])
    broken = bytearray(build_batch([Record(value=b"y" * size)], base_offset=1))
    broken[-2] ^= 1
    with pytest.raises(CorruptMessage, match="the batch at offset 1 has a wrong checksum"):
        decode(bytes(good + broken))
    opened = Decoder(PARTITION, include_headers=False).open(
        memoryview(bytes(good + broken)), check_crcs=False
    )
    assert opened.position_after(Offset(0)) == 2
    assert sum(batch.num_rows for batch in opened.decode(Offset(0), END)) == 2


def test_transactions_are_followed_and_markers_left_out(way: str) -> None:
    def sent(value: bytes, offset: int, producer_id: int) -> bytearray:
        return build_batch(
            [Record(value=value)],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )

    def ended(how: MarkerType, offset: int, producer_id: int) -> bytearray:
        return build_marker(
            how,
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
        )

    stored = (
        build_batch([Record(value=b"plain")], base_offset=0)
        + sent(b"no", 1, producer_id=7)
        + sent(b"yes", 2, producer_id=8)
        + ended(MarkerType.ABORT, 3, producer_id=7)
        + ended(MarkerType.COMMIT, 4, producer_id=8)
    )
    decoder = Decoder(PARTITION, include_headers=False)
    for aborted, expected in (
        ([AbortedTransaction(7, 1)], [b"plain", b"yes"]),
        (None, [b"plain", b"no", b"yes"]),
    ):
        opened = decoder.open(memoryview(bytes(stored)), aborted)
        assert opened.position_after(Offset(0)) == 5
        rows = as_rows(list(opened.decode(Offset(0), END)))
        assert [row["value"] for row in rows] == expected


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch(way: str) -> None:
    first, second = (bytes(build_batch([Record(value=b"x")], base_offset=base)) for base in (0, 1))
    opened = Decoder(PARTITION, include_headers=False).open(memoryview(first + second[:-1]))
    assert opened.position_after(Offset(0)) == 1
    assert sum(batch.num_rows for batch in opened.decode(Offset(0), END)) == 1


def test_a_count_that_is_not_true_is_refused(way: str) -> None:
    """One that is too large, made up for by one below zero."""
    many = bytearray(build_batch([Record(value=b"x")] * 5))
    few = bytearray(build_batch([Record(value=b"x")], base_offset=5))
    few[57:61] = (-4).to_bytes(4, "big", signed=True)
    view = memoryview(bytes(many + few))
    opened = Decoder(PARTITION, include_headers=False).open(view, check_crcs=False)
    with pytest.raises(InvalidRecord):
        list(opened.decode(Offset(0), END))


def test_the_kernel_is_had_from_a_zip_and_without_a_home(tmp_path: Path) -> None:
    """As `--py-files` delivers it: numba then has no place for what it compiles."""
    archive = tmp_path / "suwi.zip"
    with ZipFile(archive, "w") as zipped:
        for path in (SOURCE / "suwi").rglob("*.py"):
            zipped.write(path, path.relative_to(SOURCE))
    script = (
        "from suwi.spark import kernel; print(kernel.__file__, kernel.load_kernel() is not None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(archive), "HOME": "/proc/nowhere", "PATH": os.environ["PATH"]},
    )
    assert done.stdout.split() == [f"{archive}/suwi/spark/kernel.py", "True"]
