"""The cache of open files: the least recently used file is closed, a pinned one never."""

import errno
import resource
from collections import OrderedDict
from collections.abc import Iterator

import pytest

from suwi.env import File
from suwi.log.file_cache import FileCache, raise_open_file_limit
from suwi.sim import SimDisk


def _cache(open_files_max: int) -> FileCache:
    disk = SimDisk()
    disk.make_dirs("/d")
    cache = FileCache(disk, open_files_max)
    for name in "abcdef":
        file = disk.open(f"/d/{name}", create=True)
        file.pwrite(name.encode(), 0)
        file.close()
    return cache


def _is_open(file: File) -> bool:
    try:
        file.pread(1, 0)
    except OSError as error:
        return error.errno != errno.EBADF
    return True


def test_a_file_is_opened_once() -> None:
    cache = _cache(3)
    assert cache.get("/d/a") is cache.get("/d/a")
    assert len(cache) == 1


def test_the_least_recently_used_file_is_closed() -> None:
    cache = _cache(2)
    a, b = cache.get("/d/a"), cache.get("/d/b")
    cache.get("/d/a")
    cache.get("/d/c")
    assert (_is_open(a), _is_open(b)) == (True, False)
    assert len(cache) == 2


def test_files_pinned_beyond_the_limit_are_closed_when_their_pins_are_gone() -> None:
    """Earlier only the next opened file closed them: without descriptors none could be opened, and
    all stayed open for ever."""
    cache = _cache(2)
    pinned = [cache.pin(f"/d/{name}") for name in "abcde"]
    assert len(cache) == 5
    for file in pinned:
        cache.unpin(file)
    assert len(cache) == 2
    assert [_is_open(file) for file in pinned] == [False, False, False, True, True]


def test_room_is_made_before_a_file_is_opened() -> None:
    cache = _cache(2)
    cache.get("/d/a")
    cache.get("/d/b")
    with pytest.raises(FileNotFoundError):
        cache.get("/d/missing")
    assert len(cache) == 1


def test_a_pinned_file_stays_open_until_every_pin_is_gone() -> None:
    cache = _cache(1)
    a = cache.pin("/d/a")
    assert cache.pin("/d/a") is a
    cache.get("/d/b")
    cache.unpin(a)
    cache.get("/d/c")
    assert _is_open(a)
    cache.unpin(a)
    cache.get("/d/d")
    assert not _is_open(a)


def test_the_cache_shrinks_to_its_limit_once_pins_are_gone() -> None:
    cache = _cache(1)
    pinned = [cache.pin(f"/d/{name}") for name in "abcd"]
    assert len(cache) == 4
    for file in pinned:
        cache.unpin(file)
    cache.get("/d/e")
    assert len(cache) == 1


def test_a_forgotten_file_is_closed_at_once_or_with_its_last_pin() -> None:
    cache = _cache(5)
    a, b = cache.get("/d/a"), cache.pin("/d/b")
    cache.forget("/d/a")
    cache.forget("/d/b")
    cache.forget("/d/never-opened")
    assert (_is_open(a), _is_open(b)) == (False, True)
    assert cache.get("/d/b") is not b
    cache.unpin(b)
    assert not _is_open(b)
    assert _is_open(cache.get("/d/b"))


def test_a_whole_directory_can_be_forgotten() -> None:
    cache = _cache(5)
    a, b = cache.get("/d/a"), cache.get("/d/b")
    cache.forget_dir("/d")
    assert (_is_open(a), _is_open(b)) == (False, False)
    assert len(cache) == 0


class _Unlisted(OrderedDict[str, File]):
    """Open files that can be looked up, but not iterated over."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("went through all open files")


def test_forgetting_a_directory_does_not_scan_the_files_of_others() -> None:
    """When a topic of a thousand partitions is deleted, tens of thousands of files may be open."""
    cache = _cache(5)
    cache.disk.make_dirs("/d2")
    other = cache.get("/d2/x", create=True)
    a, b = cache.get("/d/a"), cache.get("/d/b")
    cache._files = _Unlisted({"/d/a": a, "/d/b": b, "/d2/x": other})
    cache.forget_dir("/d")
    assert (_is_open(a), _is_open(b), _is_open(other)) == (False, False, True)


def test_a_directory_tree_can_be_forgotten() -> None:
    cache = _cache(5)
    for directory in ("/d/below", "/d2"):
        cache.disk.make_dirs(directory)
    files = [cache.get(path, create=True) for path in ("/d/a", "/d/below/x", "/d2/x")]
    cache.forget_tree("/d")
    assert [_is_open(file) for file in files] == [False, False, True]


def test_a_directory_with_the_same_beginning_is_not_forgotten() -> None:
    cache = _cache(5)
    cache.disk.make_dirs("/d2")
    other = cache.get("/d2/x", create=True)
    cache.forget_dir("/d")
    assert _is_open(other)


def test_a_file_that_cannot_be_opened_leaves_the_cache_as_it_was() -> None:
    cache = _cache(2)
    with pytest.raises(FileNotFoundError):
        cache.get("/d/missing")
    assert len(cache) == 0


def test_the_open_file_limit_is_raised_as_far_as_allowed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        allowed = raise_open_file_limit()
        now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert now == resource.RLIM_INFINITY or now >= min(allowed, now)
        assert allowed >= soft or soft == resource.RLIM_INFINITY
        assert raise_open_file_limit() == allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
