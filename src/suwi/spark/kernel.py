"""Compiles the inner loops with numba, or loads them from its cache.

`load_kernel` compiles them with numba on the first call in a process, or takes them from numba's
cache. None means that there is no numba, or that it does not work here; whoever asks decodes in
another way. That is logged once.
Invariant: it does not fail.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T", covariant=True)

log = logging.getLogger(__name__)


class BrokenRecords(Exception):
    """The kernel found no records, or not as many as a header says."""


class Kernel(NamedTuple):
    scan_batches: Callable[..., tuple[int, int, int, int]]
    decode_records: Callable[..., tuple[int, int, int, int, int]]
    decode_headers: Callable[..., tuple[int, int, int]]


_loaded: list[Kernel | None] = []


def load_kernel() -> Kernel | None:
    """The same answer for as long as the process lives."""
    if not _loaded:
        _loaded.append(load_compiled(_compile))
    return _loaded[0]


class Compile(Protocol[T]):
    def __call__(self, *, cached: bool) -> T: ...


def load_compiled(compile_all: Compile[T]) -> T | None:
    """What a function compiles, without numba's cache where that fails; None as above."""
    # Its cache fails in ways of its own: packages in zips, folders that cannot be written to, no
    # home, files that another version or a full disk left behind.
    why = ""
    for cached in (True, False):
        try:
            return compile_all(cached=cached)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            log.debug("numba does not work, cached=%s: %s", cached, why)
    log.warning("records are decoded without numba, more slowly: %s", why)
    return None


def compiler(*, cached: bool) -> Callable[[Callable[..., Any], str], Any]:
    """Of functions with the signature that each is given."""
    import numba

    return lambda function, signature: numba.njit(signature, cache=cached, nogil=True)(function)


def _compile(*, cached: bool) -> Kernel:
    from suwi.spark import kernel_code as code

    jit = compiler(cached=cached)
    return Kernel(
        jit(code.scan_batches, code.SCAN_SIGNATURE),
        jit(code.decode_records, code.RECORDS_SIGNATURE),
        jit(code.decode_headers, code.HEADERS_SIGNATURE),
    )
