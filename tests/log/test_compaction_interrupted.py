"""Compaction while others read and change the log, and of batches that no broker of ours stores."""

import gc
import tracemalloc
from dataclasses import replace

import pytest

from suwi.log import names
from suwi.log.compaction import Cleaned, CleanerAborted, clean
from suwi.log.damage import Damage
from suwi.log.sliced_work import Job, Steps, run_steps
from suwi.model.errors import CorruptMessage, InvalidRecord
from suwi.model.ids import Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import read_header
from suwi.records.builder import append_varint, seal
from suwi.records.compression import Compression, compress
from suwi.sim import SimDisk
from tests.log.compaction_kit import (
    COMPACT,
    MAP_BYTES,
    Seen,
    compact,
    compacted_bench,
    keyed,
    keys_and_values,
    plan,
    put,
    seen_in,
)
from tests.log.kit import NOW_MS, Bench, bytes_of, seeded


def cleaning(bench: Bench) -> Steps[None]:
    planned = plan(bench)
    assert planned is not None
    return clean(
        planned,
        Cleaned(Offset(0), Offset(0)),
        now_ms=NOW_MS,
        map_bytes_max=MAP_BYTES,
        remove_later=lambda _: None,
    )


# -- concurrency -------------------------------------------------------------------------------


def test_a_pinned_range_is_not_changed_by_a_cleaning(compacting: Bench) -> None:
    bench = compacting
    for number in range(6):
        put(bench, ("a", str(number)), roll=True)
    found = bench.log.read(Offset(0), 1 << 20, Offset(6), whole_batch=True)
    assert found is not None
    region, release = found.pin()
    before = bytes_of(region)
    compact(bench)
    assert region.is_current()
    assert bytes_of(region) == before
    release()
    assert keys_and_values(bench.log) == [("a", "5")]


def test_readers_between_the_steps_of_a_cleaning_see_every_key() -> None:
    bench = compacted_bench()
    for number in range(60):
        put(bench, (f"k{number % 10}", str(number)), roll=number % 7 == 0)
    bench.log.roll(NOW_MS)
    expected = {f"k{n % 10}": str(n) for n in range(50, 60)}
    steps = cleaning(bench)

    def looking(job: Job) -> Job:
        def look_and_run() -> object:
            assert dict(keys_and_values(bench.log)) == expected
            put(bench, ("new", "1"))
            expected["new"] = "1"
            return job()

        return look_and_run

    run_steps(steps, looking)
    assert keys_and_values(bench.log)[:10] == [(f"k{n % 10}", str(n)) for n in range(50, 60)]


def interrupt(bench: Bench, what: str) -> None:
    if what == "truncate":
        bench.truncate_to(Offset(6))
    elif what == "retain":
        bench.log.remove_oldest(1)
    elif what == "delete":
        bench.log.directory.generation += 1
    else:
        bench.log.config = TopicConfig()


def cleaned_after_interruption(bench: Bench, what: str, *, at_job: int) -> list[Seen] | None:
    """The log's records when the cleaning was interrupted; None if it had ended before."""
    steps = cleaning(bench)
    jobs = 0
    before: list[Seen] | None = None

    def interrupting(job: Job) -> Job:
        nonlocal jobs, before
        jobs += 1
        if jobs == at_job:
            interrupt(bench, what)
            before = seen_in(bench.log)
        return job

    try:
        run_steps(steps, interrupting)
    except CleanerAborted:
        assert before is not None
        return before
    assert before is None or what == "retain", "the cleaning did not detect it"
    return None


def test_a_cleaning_aborts_if_retention_removed_all_its_segments_before_it_began() -> None:
    """Any other error would mean that the log cannot be compacted any more."""
    bench = compacted_bench()
    for number in range(3):
        put(bench, ("a", str(number)), roll=True)
    steps = cleaning(bench)
    bench.log.remove_oldest(len(bench.log.segments()) - 1)
    with pytest.raises(CleanerAborted, match="retention removed"):
        run_steps(steps)


@pytest.mark.parametrize("what", ["truncate", "retain", "delete", "reconfigure"])
def test_a_cleaning_aborts_without_effect_if_the_log_changes(what: str) -> None:
    for at_job in range(1, 100):
        bench = compacted_bench()
        for number in range(9):
            put(bench, ("a", str(number)), roll=True)
        before = cleaned_after_interruption(bench, what, at_job=at_job)
        if before is None:
            break
        assert seen_in(bench.log) == before
        assert not any(name.endswith(names.CLEANED) for name in bench.names())
        bench.crash()
        assert seen_in(bench.log) == before
    assert at_job > 20


def test_a_damaged_batch_ends_the_cleaning_without_effect() -> None:
    bench = compacted_bench()
    put(bench, ("a", "1"), roll=True)
    put(bench, ("a", "2"), roll=True)
    before = bench.names()
    bench.sim.overwrite(bench.path(0), b"\xff", 65)
    with pytest.raises((CorruptMessage, InvalidRecord)):
        compact(bench)
    assert bench.names() == before


def test_without_disk_space_for_a_copy_the_cleaning_does_not_start() -> None:
    disk = SimDisk(capacity_bytes=4000)
    bench = Bench(disk=disk, config=COMPACT)
    for number in range(8):
        put(bench, (f"k{number}", "v" * 300), roll=True)
    with pytest.raises(CleanerAborted):
        compact(bench)
    assert bench.state.offline_because is None
    assert len(seen_in(bench.log)) == 8


def test_a_cleaning_closes_its_files(tmp_path: object) -> None:
    bench = seeded(0, config=COMPACT)
    for number in range(9):
        put(bench, ("a", str(number)), roll=True)
    compact(bench)
    nodes = bench.sim.drive.volume.root.entries["data"].entries["orders-0"].entries  # type: ignore[union-attr]
    assert sum(node.opens for node in nodes.values()) == len(bench.files)  # type: ignore[union-attr]


# -- batches that our brokers would not have stored --------------------------------------------


def _store(bench: Bench, batch: bytearray) -> None:
    """Put a batch into the log unchanged, as in a directory from another system."""
    bench.append(batch)
    bench.log.roll(NOW_MS)
    put(bench, ("a", "2"))


def _peak_bytes(bench: Bench) -> int:
    """The peak memory of a compaction that finds an error."""
    gc.collect()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecord):
            compact(bench)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [3_000_000, 2**31 - 1, -5])
def test_a_batch_with_a_wrong_record_count_costs_no_memory(count: int) -> None:
    bench = compacted_bench(replace(COMPACT, segment_bytes=1 << 30))
    header = read_header(keyed([(b"k", b"v")]))
    lie = header._replace(record_count=count, last_offset_delta=max(0, count - 1))
    _store(bench, seal(lie, bytes(1000)))
    assert _peak_bytes(bench) < 20_000_000


def test_a_stored_decompression_bomb_costs_little_memory() -> None:
    bench = compacted_bench(replace(COMPACT, segment_bytes=1 << 30))
    header = read_header(keyed([(b"k", b"v")], codec=Compression.ZSTD))
    bomb = compress(Compression.ZSTD, bytes(200_000_000))
    _store(bench, seal(header, bomb))
    del bomb
    assert _peak_bytes(bench) < 200_000_000


def test_a_stored_batch_of_very_many_tiny_records_costs_little_memory() -> None:
    bench = compacted_bench(replace(COMPACT, segment_bytes=1 << 30))
    count = 1_500_000
    section = bytearray()
    for delta in range(count):
        body = bytearray(2)  # attributes, timestamp delta
        append_varint(body, delta)
        body += b"\x02k\x01\0"  # a key of one byte, no value, no headers
        append_varint(section, len(body))
        section += body
    section = compress(Compression.ZSTD, section)
    header = read_header(keyed([(b"k", b"v")], codec=Compression.ZSTD))
    lie = header._replace(record_count=count, last_offset_delta=count - 1)
    _store(bench, seal(lie, section))
    assert _peak_bytes(bench) < 60_000_000


def test_a_batch_with_more_keys_than_the_maps_limit_is_still_compacted() -> None:
    bench = compacted_bench(replace(COMPACT, segment_bytes=1 << 20))
    many = [(f"k{n}", "old") for n in range(500)]
    put(bench, *many, roll=True)
    put(bench, ("k7", "new"), roll=True)
    put(bench, ("active", "1"))
    for _ in range(5):
        compact(bench, map_bytes=240)
    found = keys_and_values(bench.log)
    assert len(found) == 501
    assert ("k7", "new") in found
    assert ("k7", "old") not in found


def test_damage_that_is_found_during_a_cleaning_ends_it_without_effect() -> None:
    """Its place in the old file is not its place in the new one."""
    bench = compacted_bench()
    for number in range(3):
        put(bench, ("a", str(number)), roll=True)
    before = bench.names()
    segment = bench.log.segments()[0]
    steps = cleaning(bench)
    bench.log.add_damage(Damage(Offset(0), Offset(1), Offset(0), segment.log_path, "test", 0, 61))
    with pytest.raises(CleanerAborted, match="damaged"):
        run_steps(steps)
    assert bench.names() == before
