"""Replies about the cluster that take long to make: each once per image, and in slices.

`kept` and `make` are the entrances. What makes a reply is a generator that says after each piece
what that cost; a reply that takes more than a slice is finished between other callbacks of the
loop, one such reply at a time.
Invariant: a reply is kept for the image it was made of, which is known by its identity.
"""

import asyncio
from collections.abc import Generator
from typing import Final, TypeAlias

from suwi.metadata.image import ClusterImage
from suwi.net.answers import Exclusive, Reply
from suwi.net.dispatch import Request

Steps: TypeAlias = Generator[int, None, bytes]
"""Makes the body of a reply; yields what each piece of it cost, in units of about 5 µs."""
Key: TypeAlias = tuple[int, str, bytes]

SLICE_UNITS: Final = 400
_KEPT_BYTES_MAX: Final = 8 * 1024 * 1024
_ENTRY_BYTES: Final = 300  # what the dictionary and the objects take
_KEY_BYTES_MAX: Final = 64 * 1024


class ImageReplies:
    """The encoded replies of one API."""

    def __init__(self, bytes_max: int = _KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._image: ClusterImage | None = None
        self._kept: dict[Key, bytes] = {}  # the one used last is the last
        self._kept_bytes = 0
        self._making: dict[Key, ClusterImage] = {}
        self._one_at_a_time = asyncio.Lock()

    def key(self, request: Request) -> Key | None:
        """What a reply depends on besides the image; None for a request too long to be kept.

        Asked while the request's body is there. With an authorizer, the principal belongs to it.
        """
        if len(request.body) > _KEY_BYTES_MAX:
            return None
        return request.version, request.client.listener, bytes(request.body)

    def kept(self, key: Key | None, image: ClusterImage) -> Reply | None:
        """The reply that was made before, at the same image."""
        body = self._find(key, image)
        return None if body is None else Reply([body])

    def make(self, key: Key | None, image: ClusterImage, steps: Steps) -> Reply | Exclusive:
        """Another one, at the newest image, which is kept."""
        if image is not self._image:
            self._image = image
            self._kept.clear()
            self._kept_bytes = 0
        if key is None or self._making.get(key) is not image:
            body = _run_slice(steps)
            if body is not None:
                self._keep(key, image, body)
                return Reply([body])
        return Exclusive(self._finish(key, image, steps))

    async def _finish(self, key: Key | None, image: ClusterImage, steps: Steps) -> Reply:
        if key is not None:
            self._making[key] = image
        try:
            async with self._one_at_a_time:
                body = self._find(key, image)  # Another may have asked for the same meanwhile.
                if body is None:
                    body = await run_sliced(steps)
                    self._keep(key, image, body)
        finally:
            if key is not None:
                self._making.pop(key, None)
        return Reply([body])

    def _find(self, key: Key | None, image: ClusterImage) -> bytes | None:
        if key is None or image is not self._image:
            return None
        body = self._kept.pop(key, None)
        if body is not None:
            self._kept[key] = body
        return body

    def _keep(self, key: Key | None, image: ClusterImage, body: bytes) -> None:
        if key is None or image is not self._image or _size_bytes(key, body) > self._bytes_max:
            return
        replaced = self._kept.pop(key, None)
        if replaced is not None:
            self._kept_bytes -= _size_bytes(key, replaced)
        self._kept[key] = body
        self._kept_bytes += _size_bytes(key, body)
        while self._kept_bytes > self._bytes_max:
            oldest = next(iter(self._kept))
            self._kept_bytes -= _size_bytes(oldest, self._kept.pop(oldest))


async def run_sliced(steps: Steps) -> bytes:
    """Make a reply with a pause after each slice."""
    while True:
        await asyncio.sleep(0)
        body = _run_slice(steps)
        if body is not None:
            return body


def _run_slice(steps: Steps) -> bytes | None:
    """As much as a slice allows; the reply where that was all."""
    units = 0
    while units < SLICE_UNITS:
        try:
            units += next(steps)
        except StopIteration as done:
            body: bytes = done.value
            return body
    return None


def _size_bytes(key: Key, body: bytes) -> int:
    return len(key[2]) + len(body) + _ENTRY_BYTES
