"""`suwi doctor --data` reads every batch of a stopped broker, and names what is wrong."""

import shutil
from pathlib import Path

import pytest

from suwi.log import names
from suwi.records.batch import batches
from tests.cli.support import Suwi
from tests.cli.test_doctor import findings
from tests.damage.test_damage_table import ORDERS, make_data


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("logs") / "data", 1)


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    shutil.copytree(stopped, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def suwi(monkeypatch: pytest.MonkeyPatch) -> Suwi:
    monkeypatch.setattr("suwi.cli.doctor.data_checks._FREE_MIN", 0)
    return Suwi("")


def segments(data: Path) -> list[Path]:
    found = sorted((data / ORDERS).glob("*.log"))
    assert len(found) >= 4
    return found


def remove_segment(log: Path) -> None:
    for path in log.parent.glob(f"{log.stem}.*"):
        if path.suffix != names.SNAPSHOT:
            path.unlink()


def base_of(log: Path) -> int:
    return int(log.stem)


def test_a_changed_byte_is_found_with_its_file_offset_and_position(suwi: Suwi, data: Path) -> None:
    log = segments(data)[1]
    content = bytearray(log.read_bytes())
    _, (position, header) = list(batches(content))[:2]
    content[position + header.size_bytes - 10] ^= 1
    log.write_bytes(content)
    (found,) = findings(suwi, "--data", data)
    assert (found["level"], found["about"]) == ("error", str(log))
    offsets = f"offsets {header.base_offset}-{header.last_offset}"
    assert found["problem"] == (
        f"{offsets}, position {position}: a batch does not match its checksum, or cannot be read"
    )
    assert f"suwi repair segments {data / ORDERS}" in found["advice"]


def test_a_missing_segment_is_found_between_its_neighbours(suwi: Suwi, data: Path) -> None:
    before, missing, after, *_ = segments(data)
    remove_segment(missing)
    (found,) = findings(suwi, "--data", data)
    assert found["about"] == str(before)
    assert found["problem"] == (
        f"offsets {base_of(missing)}-{base_of(after) - 1}: the records up to the next segment, "
        f"{after}, are missing"
    )


def test_a_gap_of_a_compacted_log_is_legal(suwi: Suwi, data: Path) -> None:
    remove_segment(segments(data)[1])
    (data / names.CLEANER_OFFSETS).write_text("0\n1\norders 0 16\n")
    assert findings(suwi, "--data", data, exit_code=0) == []


def test_a_gap_below_the_log_start_offset_is_legal(suwi: Suwi, data: Path) -> None:
    _, missing, after, *_ = segments(data)
    remove_segment(missing)
    (data / names.LOG_START_OFFSETS).write_text(f"0\n1\norders 0 {base_of(after) + 1}\n")
    assert findings(suwi, "--data", data, exit_code=0) == []


def test_segments_that_overlap_are_found(suwi: Suwi, data: Path) -> None:
    first, second, *_ = segments(data)
    size_bytes = first.stat().st_size
    first.write_bytes(first.read_bytes() + second.read_bytes())
    (found,) = findings(suwi, "--data", data)
    assert found["about"] == str(first)
    assert found["problem"] == (
        f"bytes after offset {base_of(second) - 1}, position {size_bytes}: "
        "bytes that are no batch of this segment follow its last one"
    )


def test_a_cut_segment_is_found_unless_it_was_not_synced(suwi: Suwi, data: Path) -> None:
    last = segments(data)[-1]
    last.write_bytes(last.read_bytes()[:-10])
    (found, *_) = findings(suwi, "--data", data)
    assert found["about"] == str(last)
    assert found["problem"].startswith("offsets ")
    (data / names.CLEAN_SHUTDOWN).unlink()
    (data / names.RECOVERY_POINTS).write_text(f"0\n1\norders 0 {base_of(last)}\n")
    for snapshot in (data / ORDERS).glob(f"*{names.SNAPSHOT}"):
        snapshot.unlink()
    assert not [found for found in findings(suwi, "--data", data) if found["level"] == "error"]


def test_long_checks_show_their_progress(
    suwi: Suwi, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suwi.cli.doctor.log_checks._PROGRESS_EVERY_MS", 0)
    ended = suwi("doctor", "--data", data)
    assert ended.exit_code == 0
    assert "checked " in ended.stderr
    assert " of " in ended.stderr
