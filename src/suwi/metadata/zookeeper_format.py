"""Names and contents of Suwi's znodes.

    <root>/entries/<00…3f>/<key>  one entry: version, value (compressed)
    <root>/ring/<0…63>          a change, at its sequence modulo 64 (compressed)
    <root>/head                 the sequence of the latest change
    <root>/registrations/<key>  a registration; each registration also sets the parent node
    <root>/controller           the elected controller
    <root>/controller-epoch     the greatest controller epoch so far

A key is escaped into one node name. Entries are spread over 64 nodes by a hash of it, because
ZooKeeper lists the children of a node in one packet (hazard Z12).
"""

import struct
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from suwi.metadata.store import HISTORY_CHANGES, Change, Controller, Entry, Registration
from suwi.model.ids import NodeId

_SEQUENCE = struct.Struct(">q")
_FIELD = struct.Struct(">i")
_DELETED = -1
_COMPRESSION_LEVEL = 1
_BUCKETS = 64

Node = tuple[bytes, Any]
"""A znode's data and its stat."""
Step = tuple[str, str, tuple[Any, ...]]
"""One operation of a multi: the client's method, path, further arguments."""


class Paths:
    def __init__(self, root: str) -> None:
        self.root = root
        self.entries = f"{root}/entries"
        self.ring = f"{root}/ring"
        self.head = f"{root}/head"
        self.registrations = f"{root}/registrations"
        self.controller = f"{root}/controller"
        self.controller_epoch = f"{root}/controller-epoch"

    def buckets(self) -> list[str]:
        return [f"{self.entries}/{number:02x}" for number in range(_BUCKETS)]

    def entry(self, key: str) -> str:
        name = name_of(key)
        return f"{self.entries}/{zlib.crc32(name.encode()) % _BUCKETS:02x}/{name}"

    def registration(self, key: str) -> str:
        return f"{self.registrations}/{name_of(key)}"

    def slot(self, sequence: int) -> str:
        return f"{self.ring}/{sequence % HISTORY_CHANGES}"


def name_of(key: str) -> str:
    return quote(key, safe="")


def key_of(name: str) -> str:
    return unquote(name)


def encode_number(number: int) -> bytes:
    return b"%d" % number


def decode_number(data: bytes) -> int:
    return int(data)


def encode_controller(controller: Controller) -> bytes:
    return b"%d %d" % (controller.node_id, controller.epoch)


def decode_controller(data: bytes) -> Controller:
    node_id, epoch = data.split()
    return Controller(NodeId(int(node_id)), int(epoch))


def rolled_back(head: int, seen: int) -> str:
    return (
        f"ZooKeeper is at change {head}, but this broker has seen change {seen}: ZooKeeper has "
        "lost data or was restored from an older copy; restore newer data"
    )


def encode_entry(value: bytes, version: int) -> bytes:
    return _SEQUENCE.pack(version) + zlib.compress(value, _COMPRESSION_LEVEL)


def decode_entry(key: str, data: bytes) -> Entry:
    (version,) = _SEQUENCE.unpack_from(data)
    return Entry(key, zlib.decompress(data[_SEQUENCE.size :]), version)


def encode_change(sequence: int, values: Mapping[str, bytes | None]) -> bytes:
    pieces = []
    for key, value in values.items():
        name = key.encode()
        pieces += [_FIELD.pack(len(name)), name]
        pieces += [_FIELD.pack(_DELETED)] if value is None else [_FIELD.pack(len(value)), value]
    return _SEQUENCE.pack(sequence) + zlib.compress(b"".join(pieces), _COMPRESSION_LEVEL)


def decode_change(data: bytes) -> Change:
    (sequence,) = _SEQUENCE.unpack_from(data)
    body = zlib.decompress(data[_SEQUENCE.size :])
    values: dict[str, bytes | None] = {}
    position = 0
    while position < len(body):
        (size_bytes,) = _FIELD.unpack_from(body, position)
        position += _FIELD.size
        key = body[position : position + size_bytes].decode()
        position += size_bytes
        (size_bytes,) = _FIELD.unpack_from(body, position)
        position += _FIELD.size
        if size_bytes == _DELETED:
            values[key] = None
        else:
            values[key] = body[position : position + size_bytes]
            position += size_bytes
    return Change(sequence, values)


def registration_of(key: str, node: Node) -> Registration:
    data, stat = node
    return Registration(key, data, stat.czxid, stat.ephemeralOwner)
