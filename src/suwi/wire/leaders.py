"""CurrentLeader and NodeEndpoint, the structures that Produce and Fetch share (KIP-951)."""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from suwi.wire.primitives import Reader, compact_string, count, uvarint

_LEADER: Final = struct.Struct(">iix")  # leader id, leader epoch, no tags
_NODE_ID: Final = struct.Struct(">i")
_PORT: Final = struct.Struct(">i")
_ENDPOINT_BYTES_MIN: Final = 11


class CurrentLeader(NamedTuple):
    leader_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


def encode_leader(leader: CurrentLeader) -> bytes:
    return _LEADER.pack(*leader)


def decode_leader(reader: Reader) -> CurrentLeader:
    return CurrentLeader(*reader.unpack(_LEADER))


def encode_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    out = [count(len(endpoints), flexible=True)]
    for endpoint in endpoints:
        out += (
            _NODE_ID.pack(endpoint.node_id),
            compact_string(endpoint.host),
            _PORT.pack(endpoint.port),
            compact_string(endpoint.rack),
            uvarint(0),
        )
    return b"".join(out)


def decode_endpoints(reader: Reader) -> list[NodeEndpoint]:
    endpoints = []
    for _ in range(reader.count(True, _ENDPOINT_BYTES_MIN)):
        (node_id,) = reader.unpack(_NODE_ID)
        host = reader.string(True)
        (port,) = reader.unpack(_PORT)
        rack = reader.nullable_string(True)
        reader.skip_tags()
        endpoints.append(NodeEndpoint(node_id, host, port, rack))
    return endpoints
