"""Memory for the page cache that is already allocated to the machine.

A virtual machine may return memory to its host a second or two after it was freed; writing to a
new file then has to allocate every page, which costs several times as much as the write itself. A
broker that has run for a while has a full page cache and is not affected.
"""

import os
import tempfile

_PIECE = bytes(1024 * 1024)


def warm(size_bytes: int) -> None:
    """Write this much and free it, just before a measurement needs that memory."""
    with tempfile.TemporaryFile(prefix="suwi-bench-") as file:
        for position in range(0, size_bytes, len(_PIECE)):
            os.pwrite(file.fileno(), _PIECE, position)
