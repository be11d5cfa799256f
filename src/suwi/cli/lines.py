"""Reads lines of a file, pipe or terminal without blocking the event loop and without threads."""

import asyncio
import os
from collections.abc import AsyncIterator

_CHUNK_BYTES = 64 * 1024


async def lines(fd: int) -> AsyncIterator[bytes]:
    """Each line without its line end, which the last one may lack."""
    rest = b""
    while chunk := await _read(fd):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


async def _read(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(fd, _set, ready)
    except (PermissionError, ValueError, OSError):
        return os.read(fd, _CHUNK_BYTES)  # a regular file is always ready
    try:
        await ready
    finally:
        loop.remove_reader(fd)
    return os.read(fd, _CHUNK_BYTES)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
