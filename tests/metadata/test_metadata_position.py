"""How far a broker has followed the metadata is remembered, and an older store refused."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from suwi.env import local_env
from suwi.log.file_cache import FileCache
from suwi.log.log_directories import LogDirectories
from suwi.metadata.image import ClusterImage
from suwi.metadata.metadata_position import MetadataPosition
from suwi.metadata.store import StoreRolledBack


@contextmanager
def opened(folder: Path) -> Iterator[MetadataPosition]:
    env = local_env()
    directories = LogDirectories(env, [str(folder)], FileCache(env.disk, 10))
    directories.open()
    try:
        yield MetadataPosition(env.disk, directories.first_usable)
    finally:
        for directory in directories:
            directory.close(clean=True)


def test_a_store_behind_what_was_seen_is_refused_with_the_way_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        with opened(tmp_path) as position:
            position.check(0)
            position.apply_image(ClusterImage(), ClusterImage(sequence=7))
            position.write()
        with opened(tmp_path) as position, pytest.raises(StoreRolledBack) as error:
            position.check(6)
        assert "is at change 6, but this broker has seen change 7" in str(error.value)
        file = tmp_path / "suwi-metadata-position"
        assert f"remove {file}" in str(error.value)
        with opened(tmp_path) as position:
            position.check(7)
        file.unlink()
        with opened(tmp_path) as position:
            position.check(6)

    asyncio.run(scenario())


@pytest.mark.parametrize("content", ["", "rubbish\n"])
def test_a_file_that_cannot_be_read_refuses_nothing_and_is_written_again(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A power loss may leave it empty."""

    async def scenario() -> None:
        (tmp_path / "suwi-metadata-position").write_text(content)
        with opened(tmp_path) as position:
            position.check(3)
        assert (tmp_path / "suwi-metadata-position").read_text() == "3\n"

    asyncio.run(scenario())
    assert "metadata position damaged, writing it again" in caplog.text
