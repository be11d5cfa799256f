"""A cache of replies that are expensive to build: each is built once per metadata image, in slices.

`cached` and `build` are the entrances. A reply is built by a generator that yields the cost of each
piece. A reply that takes more than a slice is finished in later iterations of the event loop, one
such reply at a time.
Invariants: a cached reply is valid only for the image it was built from, compared by identity; a
reply that refuses something is not cached, because each refusal is noted in the audit log.
"""

import asyncio
from collections.abc import Generator
from typing import Final, TypeAlias

from suwi.metadata.image import ClusterImage
from suwi.net.answers import Exclusive, Reply
from suwi.net.dispatch import Request
from suwi.security.principal import Principal
from suwi.wire.codec import join_items
from suwi.wire.encoder import EncodedItems

Steps: TypeAlias = Generator[int, None, bytes]
"""Builds the body of a reply; yields the cost of each piece, in units of about 5 µs."""
Key: TypeAlias = tuple[int, str, bytes, tuple[Principal, str, bool] | None]

SLICE_UNITS: Final = 400
_CACHED_BYTES_MAX: Final = 8 * 1024 * 1024
_ENTRY_BYTES: Final = 300  # overhead of the dictionary and the objects
_KEY_BYTES_MAX: Final = 64 * 1024
_PIECES_JOINED: Final = 500


class ImageReplies:
    """The cached replies of one API."""

    def __init__(self, bytes_max: int = _CACHED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._image: ClusterImage | None = None
        self._cached: dict[Key, bytes] = {}  # in order of last use
        self._cached_bytes = 0
        self._building: dict[Key, ClusterImage] = {}
        self._one_at_a_time = asyncio.Lock()

    def key(self, request: Request) -> Key | None:
        """What a reply depends on besides the image; None for a request that is too long to cache.

        Call it while the request's body is valid. With an authorizer it depends on the client.
        """
        if len(request.body) > _KEY_BYTES_MAX:
            return None
        client = request.client
        who = (
            None if request.authorizer is None else (client.principal, client.host, client.is_peer)
        )
        return request.version, client.listener, bytes(request.body), who

    def cached(self, key: Key | None, image: ClusterImage) -> Reply | None:
        """The reply that was built before from the same image."""
        body = self._find(key, image)
        return None if body is None else Reply([body])

    def build(
        self, request: Request, key: Key | None, image: ClusterImage, steps: Steps
    ) -> Reply | Exclusive:
        """Build and cache a reply; `image` must be the newest."""
        if image is not self._image:
            self._image = image
            self._cached.clear()
            self._cached_bytes = 0
        if key is None or self._building.get(key) is not image:
            body = _run_slice(steps)
            if body is not None:
                self._store(request, key, image, body)
                return Reply([body])
        return Exclusive(self._finish(request, key, image, steps))

    async def _finish(
        self, request: Request, key: Key | None, image: ClusterImage, steps: Steps
    ) -> Reply:
        if key is not None:
            self._building[key] = image
        try:
            async with self._one_at_a_time:
                body = self._find(key, image)  # the same request may have been served meanwhile
                if body is None:
                    body = await run_sliced(steps)
                    self._store(request, key, image, body)
        finally:
            if key is not None:
                self._building.pop(key, None)
        return Reply([body])

    def _find(self, key: Key | None, image: ClusterImage) -> bytes | None:
        if key is None or image is not self._image:
            return None
        body = self._cached.pop(key, None)
        if body is not None:
            self._cached[key] = body
        return body

    def _store(self, request: Request, key: Key | None, image: ClusterImage, body: bytes) -> None:
        if key is None or image is not self._image or request.was_refused:
            return
        if _size_bytes(key, body) > self._bytes_max:
            return
        replaced = self._cached.pop(key, None)
        if replaced is not None:
            self._cached_bytes -= _size_bytes(key, replaced)
        self._cached[key] = body
        self._cached_bytes += _size_bytes(key, body)
        while self._cached_bytes > self._bytes_max:
            oldest = next(iter(self._cached))
            self._cached_bytes -= _size_bytes(oldest, self._cached.pop(oldest))


class Pieces:
    """The encoded items of an array, in few pieces: many would take long to join at the end."""

    def __init__(self) -> None:
        self._joined: list[EncodedItems] = []
        self._pieces: list[EncodedItems] = []

    def add(self, piece: EncodedItems) -> None:
        self._pieces.append(piece)
        if len(self._pieces) == _PIECES_JOINED:
            self._joined.append(join_items(self._pieces))
            self._pieces = []

    def all(self) -> EncodedItems:
        return join_items([*self._joined, *self._pieces])


async def run_sliced(steps: Steps) -> bytes:
    """Build a reply, yielding to the event loop before each slice."""
    while True:
        await asyncio.sleep(0)
        body = _run_slice(steps)
        if body is not None:
            return body


def _run_slice(steps: Steps) -> bytes | None:
    """Run one slice. Returns the reply if it is finished."""
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
