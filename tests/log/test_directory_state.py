"""Which failures a data directory survives."""

import errno

import pytest

from suwi.env.problems import Problems
from suwi.log.directory_state import DirectoryState
from suwi.model.errors import KafkaStorageError
from suwi.sim import ManualClock


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_a_transient_error_is_returned_and_the_directory_stays_online(number: int) -> None:
    state = DirectoryState("/data", Problems(ManualClock()))
    assert isinstance(state.failed(OSError(number, "no")), KafkaStorageError)
    state.check()


def test_failed_writes_to_a_full_disk_are_counted() -> None:
    state = DirectoryState("/data", Problems(ManualClock()))
    for _ in range(3):
        state.failed(OSError(errno.ENOSPC, "no"))
    assert (state.is_full, state.full_errors) == (True, 3)
    state.has_space()
    assert (state.is_full, state.full_errors) == (False, 3)


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EACCES])
def test_anything_else_takes_the_directory_offline_for_good(number: int) -> None:
    state = DirectoryState("/data", Problems(ManualClock()))
    state.failed(OSError(number, "no"))
    with pytest.raises(KafkaStorageError):
        state.check()
