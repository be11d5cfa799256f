"""The value of a broker's registration, and whose an existing registration of the same id is.

Two hosts may by mistake run with one id and even with one advertised address, so an address proves
nothing (hazard Z4). A registration is this broker's own if it was made by this process, or with one
of its data directories since the machine booted and by no process that still answers: this process
holds the directory's lock, but the directory may be a copy. Any other one is left to its session.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import NamedTuple

from suwi.controller.replication_control import Registered
from suwi.metadata.image import BrokerInfo, Endpoint, decode_broker, encode_broker
from suwi.metadata.store import Registration
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.replica.peers import Connect
from suwi.wire.versions import ApiKey

log = logging.getLogger(__name__)

_PROBE_S = 2.0


class IdInUse(Exception):
    """Another running broker is registered with this broker's id."""


class Origin(NamedTuple):
    """Where a registration comes from."""

    directory_ids: tuple[str, ...] = ()
    boot_id: str = ""
    session_timeout_ms: int = 0
    process: str = ""
    """A random id; empty in a registration of an earlier version."""

    def is_same_process(self, other: "Origin") -> bool:
        return self.process == other.process != ""

    def is_same(self, other: "Origin") -> bool:
        """Whether both are of brokers that used the same data directory on the same machine; only
        one of them can be running, unless the directory was copied."""
        return self.has_directory_of(other.directory_ids) and self.boot_id == other.boot_id != ""

    def has_directory_of(self, directory_ids: tuple[str, ...]) -> bool:
        return not set(self.directory_ids).isdisjoint(directory_ids)


class BrokerIncarnation(NamedTuple):
    """What a broker answers to DescribeBroker about itself."""

    node: NodeId
    stopping: bool
    directories: Sequence[str] = ()
    epoch: int = -1
    process: str = ""


class OwnRegistration(NamedTuple):
    broker: BrokerInfo
    was_unclean_shutdown: bool
    origin: Origin = Origin()


def encode_registration(own: OwnRegistration) -> bytes:
    return json.dumps(
        {
            **json.loads(encode_broker(own.broker)),
            "suspect": own.was_unclean_shutdown,
            "directories": own.origin.directory_ids,
            "boot": own.origin.boot_id,
            "session_ms": own.origin.session_timeout_ms,
            "process": own.origin.process,
        }
    ).encode()


def decode_registration(node_id: NodeId, registration: Registration) -> Registered:
    value = json.loads(registration.value)
    broker = decode_broker(node_id, json.dumps({**value, "epoch": registration.epoch}).encode())
    return Registered(broker, value["suspect"])


def decode_origin(registration: Registration) -> Origin:
    value = json.loads(registration.value)
    process = value.get("process", "")
    return Origin(tuple(value["directories"]), value["boot"], value["session_ms"], process)


async def refuse_if_answered(other: BrokerInfo, own: Origin, connect: Connect) -> None:
    """Raises IdInUse if another broker answers at the registered addresses."""
    for endpoint in other.endpoints:
        found = await _probe(endpoint, connect)
        # This broker may itself be reached there; then the other one was not asked.
        if found is None or found.stopping or _is_itself(found, own):
            continue
        raise IdInUse(in_use(other, tuple(found.directories), f"answers at {_text(endpoint)}"))


def _is_itself(found: BrokerIncarnation, own: Origin) -> bool:
    if found.process and own.process:
        return found.process == own.process
    return own.has_directory_of(tuple(found.directories))  # of an earlier version


def in_use(other: BrokerInfo, directory_ids: tuple[str, ...], how: str) -> str:
    named = f" with data directory {', '.join(directory_ids)}" if directory_ids else ""
    return f"broker id {other.id} is in use: a broker{named} {how}"


def address_of(broker: BrokerInfo) -> str:
    return ", ".join(map(_text, broker.endpoints))


def _text(endpoint: Endpoint) -> str:
    return f"{endpoint.host}:{endpoint.port}"


async def _probe(endpoint: Endpoint, connect: Connect) -> BrokerIncarnation | None:
    """Which broker answers at the endpoint; None if none does."""
    try:
        async with asyncio.timeout(_PROBE_S):
            connection = await connect(endpoint)
            try:
                answer = await connection.send(ApiKey.DESCRIBE_BROKER, 0, [b"{}"])
                return decode_incarnation(bytes(answer))
            finally:
                connection.abort()
    except (OSError, ValueError, BrokerError) as error:  # OSError includes TimeoutError
        fields = {"address": _text(endpoint), "reason": str(error)}
        log.debug("registered address does not answer", extra=fields)
        return None


def decode_incarnation(body: bytes) -> BrokerIncarnation:
    """The fields that brokers use; of a client's response the others are skipped. Raises
    ValueError."""
    try:
        told = json.loads(body)
        return BrokerIncarnation(**{key: told[key] for key in told if key in _FIELDS})
    except TypeError as error:
        raise ValueError(str(error)) from error


_FIELDS = frozenset(BrokerIncarnation._fields)
