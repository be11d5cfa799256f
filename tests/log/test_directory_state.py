"""Which failures a data directory survives."""

import errno

import pytest

from suwi.log.directory_state import DirectoryState
from suwi.model.errors import KafkaStorageError


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_what_passes_is_answered_and_the_directory_stays_in_use(number: int) -> None:
    state = DirectoryState("/data")
    assert isinstance(state.failed(OSError(number, "no")), KafkaStorageError)
    state.check()


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EACCES])
def test_anything_else_takes_the_directory_offline_for_good(number: int) -> None:
    state = DirectoryState("/data")
    state.failed(OSError(number, "no"))
    with pytest.raises(KafkaStorageError):
        state.check()
