"""Encodes and decodes any message by API key and version, with kio's schemas.

Decoding returns kio's frozen entities. Encoding takes plain dicts with kio's field names, with the
fields of all versions at once (see `encoder`). Times may be given in milliseconds. A long array can
be encoded piece by piece with `encode_items` and `join_items`. A schema is imported at its first
use, which takes tens of milliseconds: a broker calls `load` before that.
Invariant: decoding a peer's bytes returns an entity or raises `MalformedMessage`, nothing else.
"""

import asyncio
import errno
from collections.abc import Callable, Collection, Generator, Mapping
from functools import cache, partial
from typing import Any, Final, TypeAlias

from kio.serial import entity_reader
from typing_extensions import Buffer

from suwi.wire.encoder import EncodedItems, Fields, Path, compile_encoder
from suwi.wire.errors import (
    InvalidFields,
    MalformedMessage,
    MalformedRequest,
    MalformedResponse,
    RequestTooLarge,
    TooManyItems,
)
from suwi.wire.fetch_request import decoding_fetch_request
from suwi.wire.guard import compile_guard
from suwi.wire.offset_commit import decoding_offset_commit_request
from suwi.wire.schema import REQUIRED, Direction, Field, Structure, entity_type, structure
from suwi.wire.sliced_reader import SlicedReader, compile_sliced_reader
from suwi.wire.throttle_time import THROTTLE_TIME, position
from suwi.wire.versions import APIS, REQUEST_ITEMS_MAX, ApiKey

_RESPONSE_ITEMS_MAX = 2**31 - 1

LARGE_BYTES: Final = 16 * 1024
"""Larger requests are decoded in slices. An item may be as small as a byte."""

_OWN_DECODERS: Final[Mapping[int, Callable[[int, memoryview], Generator[None, None, Any]]]] = {
    ApiKey.FETCH: decoding_fetch_request,
    ApiKey.OFFSET_COMMIT: decoding_offset_commit_request,
}

_BEFORE_SEVERAL_AT_ONCE: Final[Mapping[int, int]] = {
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.FIND_COORDINATOR: 3,
}
"""The last version for one group, whose response has another form."""
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
_LOAD_AGAIN_S: Final = 0.1

_Read: TypeAlias = Callable[[memoryview, int], Any]


def uses_schema(api_key: int) -> bool:
    """Whether requests of this API, or their usual responses, are decoded or encoded here."""
    return APIS[api_key].is_kafkas and api_key not in (ApiKey.PRODUCE, ApiKey.FETCH)


async def load(api_key: int, version: int) -> None:
    """Load what a request of this version and its response need, in a thread. An import releases
    the event loop every few milliseconds. Without file descriptors it waits for one."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return await loop.run_in_executor(None, _load, api_key, version)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
        await asyncio.sleep(_LOAD_AGAIN_S)


def _load(api_key: int, version: int) -> None:
    _reader(api_key, version, Direction.REQUEST)
    _encoder(api_key, version, Direction.RESPONSE)
    position(api_key, version)
    for other in _versions_with_most_names(api_key):  # See `_check_names`.
        if other >= version:
            structure(api_key, other, Direction.RESPONSE)


def _versions_with_most_names(api_key: int) -> tuple[int, ...]:
    """The newest has nearly every name; of some APIs an old one has the others."""
    newest, earlier = APIS[api_key].max_version, _BEFORE_SEVERAL_AT_ONCE.get(api_key)
    return (newest,) if earlier is None else (newest, earlier)


def read_request(api_key: int, version: int, body: Buffer, at: int = 0) -> Any:
    """Decode a request whose body starts at `at` into kio's entity.

    Bytes after its end are ignored, as in Kafka. Raises `MalformedRequest`.
    """
    try:
        return _reader(api_key, version, Direction.REQUEST)(memoryview(body).toreadonly(), at)
    except TooManyItems as error:
        raise RequestTooLarge(f"{APIS[api_key].name} v{version}: {error}") from error
    except MalformedMessage as error:
        raise MalformedRequest(f"{APIS[api_key].name} v{version}: {error}") from error


def is_read_in_slices(api_key: int) -> bool:
    """Whether `reading_request` decodes the requests of this API."""
    return not APIS[api_key].raw_body or api_key in _OWN_DECODERS


def reading_request(
    api_key: int, version: int, body: Buffer, at: int = 0
) -> Generator[None, None, Any]:
    """Like `read_request`, in slices: a generator that yields after each and returns the entity.

    For Fetch and OffsetCommit it returns what their own decoders do.
    """
    view = memoryview(body).toreadonly()
    decode = _OWN_DECODERS.get(api_key)
    try:
        if decode is not None:
            return (yield from decode(version, view[at:]))
        return (yield from _sliced_reader(api_key, version, Direction.REQUEST)(view, at))
    except RequestTooLarge:
        raise
    except TooManyItems as error:
        raise RequestTooLarge(f"{APIS[api_key].name} v{version}: {error}") from error
    except Exception as error:  # kio raises several types; all mean malformed bytes
        raise MalformedRequest(f"{APIS[api_key].name} v{version}: {error}") from error


def read_response(api_key: int, version: int, body: Buffer, at: int = 0) -> Any:
    """Decode a response whose body starts at `at`. Raises `MalformedResponse`."""
    try:
        return _reader(api_key, version, Direction.RESPONSE)(memoryview(body).toreadonly(), at)
    except MalformedMessage as error:
        raise MalformedResponse(f"{APIS[api_key].name} v{version}: {error}") from error


def reading_response(api_key: int, version: int, body: Buffer) -> Generator[None, None, Any]:
    """Like `read_response`, in slices."""
    read = _sliced_reader(api_key, version, Direction.RESPONSE)
    try:
        return (yield from read(memoryview(body).toreadonly(), 0))
    except Exception as error:
        raise MalformedResponse(f"{APIS[api_key].name} v{version}: {error}") from error


def encode_request(api_key: int, version: int, fields: Fields) -> bytes:
    """Encode the body of a request. Raises `InvalidFields`."""
    return _encoder(api_key, version, Direction.REQUEST)(fields)


def encode_response(api_key: int, version: int, fields: Fields) -> bytes:
    """Encode the body of a response; the throttle time is 0 unless it is given. Raises
    `InvalidFields`."""
    fields = {THROTTLE_TIME: 0, **fields}
    return _encoder(api_key, version, Direction.RESPONSE)(fields)


def encode_refusal(
    api_key: int, version: int, error_code: int, message: str | None = None
) -> bytes | None:
    """A response with an error for the whole request and nothing else; None if the version has no
    place for one. The message is left out where there is none for it."""
    described = structure(api_key, version, Direction.RESPONSE)
    fields = {field.name: _nothing(field) for field in described.fields}
    if "error_code" not in fields:
        return None
    fields["error_code"] = error_code
    if "error_message" in fields:
        fields["error_message"] = message
    return encode_response(api_key, version, fields)


def _nothing(field: Field) -> Any:
    if field.default is not REQUIRED:
        return field.default
    if field.nullable:
        return None
    if field.is_array:
        return ()
    if field.structure is not None:
        return {inner.name: _nothing(inner) for inner in field.structure.fields}
    return {"string": "", "bytes": b"", "records": b"", "uuid": None, "bool": False}.get(
        field.kafka_type, 0
    )


def encode_items(api_key: int, version: int, path: Path, items: Collection[Fields]) -> EncodedItems:
    """Encode some items of the array at `path` in a response; the rest may be other pieces."""
    encode = _item_encoder(api_key, version, path)
    return EncodedItems(len(items), b"".join([encode(item) for item in items]))


def join_items(pieces: Collection[EncodedItems]) -> EncodedItems:
    return EncodedItems(
        sum(piece.length for piece in pieces), b"".join([piece.data for piece in pieces])
    )


# Requests are not trusted. The size of a response is determined by our own request.
_ITEMS_MAX: Final = {
    Direction.REQUEST: REQUEST_ITEMS_MAX,
    Direction.RESPONSE: _RESPONSE_ITEMS_MAX,
}


@cache
def _reader(api_key: int, version: int, direction: Direction) -> _Read:
    read_entity = entity_reader(entity_type(api_key, version, direction))
    guard = compile_guard(structure(api_key, version, direction), _ITEMS_MAX[direction])

    def read(body: memoryview, at: int) -> Any:
        try:
            return read_entity(*guard(body, at))[0]
        except MalformedMessage:
            raise
        except Exception as error:  # kio raises several types; all mean malformed bytes
            raise MalformedMessage(str(error)) from error

    return read


@cache
def _sliced_reader(api_key: int, version: int, direction: Direction) -> SlicedReader:
    described = structure(api_key, version, direction)
    return compile_sliced_reader(
        entity_type(api_key, version, direction), described, _ITEMS_MAX[direction]
    )


@cache
def _encoder(api_key: int, version: int, direction: Direction) -> Callable[[Fields], bytes]:
    return compile_encoder(
        structure(api_key, version, direction), partial(_check_names, api_key, direction)
    )


@cache
def _item_encoder(api_key: int, version: int, path: Path) -> Callable[[Fields], bytes]:
    item = _descend(structure(api_key, version, Direction.RESPONSE), path)
    assert item is not None, f"{APIS[api_key].name} v{version} has no {'.'.join(path)}"
    return compile_encoder(item, partial(_check_names, api_key, Direction.RESPONSE), path)


def _check_names(api_key: int, direction: Direction, path: Path, names: Collection[str]) -> None:
    api = APIS[api_key]
    unknown = set(names) - {THROTTLE_TIME}  # not all responses have one
    versions = range(api.max_version, api.min_version - 1, -1)
    # Each version costs an import, except those that `load` has loaded.
    for other in (*_versions_with_most_names(api_key), *versions):
        at_path = _descend(structure(api_key, other, direction), path)
        if at_path is not None:
            unknown -= {field.name for field in at_path.all_fields()}
        if not unknown:
            return
    where = ".".join((f"{api.name} {direction.value}", *path))
    raise InvalidFields(f"{where} has no field {sorted(unknown)} in any version")


def _descend(top: Structure, path: Path) -> Structure | None:
    at: Structure | None = top
    for name in path:
        if at is None:
            return None
        at = next((field.structure for field in at.all_fields() if field.name == name), None)
    return at
