"""Memory for the page cache that the machine has touched before.

A virtual machine may hand memory back to its host a second or two after it was freed; writing to a
new file then pays for getting every page anew, several times what the write itself costs. A broker
that has run for a while has a full page cache and does not see this.
"""

import os
import tempfile

_PIECE = bytes(1024 * 1024)


def warm(size_bytes: int) -> None:
    """Write so much and give it up, just before somebody else needs that memory."""
    with tempfile.TemporaryFile(prefix="suwi-bench-") as file:
        for position in range(0, size_bytes, len(_PIECE)):
            os.pwrite(file.fileno(), _PIECE, position)
