"""A checkpoint: where it stands, and set aside instead of deleted."""

from pathlib import Path

import pytest

from suwi.env import Env, local_env
from suwi.model.ids import TopicPartition
from suwi.sim.clock import ManualClock
from suwi.spark.pipeline.checkpoint import Checkpoint, NotLocal


def batch(folder: Path, number: int, offsets: str, *, done: bool = True) -> None:
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "commits").mkdir(exist_ok=True)
    (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offsets}')
    (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
    if done:
        (folder / "commits" / str(number)).write_text("v1\n{}")


def test_a_folder_that_is_not_there_is_no_checkpoint(tmp_path: Path) -> None:
    assert not Checkpoint(str(tmp_path / "none")).exists()
    assert not Checkpoint(str(tmp_path)).exists()
    assert Checkpoint(str(tmp_path)).position() is None


def test_it_stands_where_the_last_batch_ends(tmp_path: Path) -> None:
    batch(tmp_path, 9, '{"a":{"0":5}}')
    batch(tmp_path, 10, '{"a":{"0":7,"1":3},"#began":{"a":{"0":0}}}', done=False)
    checkpoint = Checkpoint(f"file://{tmp_path}")
    assert checkpoint.exists()
    position = checkpoint.position()
    assert position is not None
    assert position.batch == 10  # not 9, which comes later in the alphabet
    assert position.offsets == {TopicPartition("a", 0): 7, TopicPartition("a", 1): 3}
    assert not position.is_done


def test_set_aside_it_is_there_under_another_name(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    batch(folder, 0, "{}")
    env = Env(ManualClock(1_767_225_600_123), local_env().disk, local_env().random)
    aside = Checkpoint(str(folder), env).set_aside()
    assert aside == f"{folder}.before-20260101T000000.123Z"
    assert (Path(aside) / "offsets" / "0").exists()
    assert not folder.exists()


def test_one_in_a_store_is_left_to_spark() -> None:
    with pytest.raises(NotLocal):
        Checkpoint("s3a://bucket/checkpoint").exists()
