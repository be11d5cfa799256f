"""A connection to a broker with the API versions that both sides support.

`VersionedConnection.open` connects and fetches the versions; `call` encodes a request in the newest
common version, `send` sends an encoded one. Both have a timeout.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from suwi import __version__
from suwi.client.addresses import Address
from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.client.errors import check, error_from
from suwi.client.settings import ClientSettings
from suwi.model.errors import UnsupportedVersion
from suwi.wire.errors import MalformedResponse
from suwi.wire.versions import APIS, ApiKey

Connect: TypeAlias = Callable[[Address], Awaitable[PeerConnection]]
"""Makes a connection: in plain text, or with TLS and SASL."""

_API_VERSIONS_VERSION = 3
_CLOSE_TIMEOUT_S = 5


def connect_plain(client_id: str) -> Connect:
    async def connect(address: Address) -> PeerConnection:
        return await PeerConnection.open(address.host, address.port, client_id=client_id)

    return connect


@dataclass(eq=False, repr=False)
class VersionedConnection:
    address: Address
    _connection: PeerConnection
    _versions: Mapping[int, tuple[int, int]]
    features: Mapping[str, int]
    """The cluster's finalized levels when the connection was made."""
    _timeout_s: float

    @classmethod
    async def open(
        cls, address: Address, connect: Connect, settings: ClientSettings
    ) -> "VersionedConnection":
        """Raises OSError."""
        async with asyncio.timeout(settings.connect_timeout_s):
            connection = await connect(address)
            try:
                versions, features = await _fetch_versions(connection)
            except BaseException as error:
                connection.abort()
                if isinstance(error, MalformedResponse):
                    raise ConnectionLost(f"{address} does not use Kafka's protocol") from error
                raise
        return cls(address, connection, versions, features, settings.request_timeout_s)

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    @property
    def is_closed_here(self) -> bool:
        """Whether this side has closed it, as after a response that took too long."""
        return self._connection.is_closed_here

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Set a callback for the end of the connection, whichever side closed it."""
        self._connection.when_ended(lambda _broke: callback())

    def version(self, api: ApiKey, *, at_most: int | None = None) -> int:
        """The newest version that both sides support. Raises `UnsupportedVersion`."""
        ours, theirs = APIS[api], self._versions.get(api)
        if theirs is not None:
            limit = ours.max_version if at_most is None else min(at_most, ours.max_version)
            newest = min(limit, theirs[1])
            if newest >= max(ours.min_version, theirs[0]):
                return newest
        raise UnsupportedVersion(f"the broker at {self.address} does not serve {ours.name}")

    async def call(
        self,
        api: ApiKey,
        fields: Mapping[str, Any],
        *,
        at_most: int | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request with the fields of all versions; returns the response as kio's entity."""
        version = self.version(api, at_most=at_most)
        async with self._time_limit(timeout_s):
            return await self._connection.call(api, version, fields)

    async def send(
        self,
        api: ApiKey,
        version: int,
        body: Sequence[bytes | bytearray | memoryview],
        *,
        timeout_s: float | None = None,
    ) -> memoryview:
        """Send an encoded request; returns the body of the response."""
        async with self._time_limit(timeout_s):
            return await self._connection.send(api, version, body)

    async def call_json(
        self, api: ApiKey, fields: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> Any:
        """As `call`, for Suwi's own APIs, whose bodies are JSON. Raises the error of a client that
        has no right to ask."""
        body = json.dumps(fields).encode()
        told = json.loads(bytes(await self.send(api, 0, [body], timeout_s=timeout_s)))
        if told.get("error_code"):
            raise error_from(told["error_code"], told["error_message"])
        return told

    async def send_unanswered(
        self, api: ApiKey, version: int, body: Sequence[bytes | bytearray | memoryview]
    ) -> None:
        """Send a request that gets no response; waits while the send buffer is full."""
        self._connection.send_unanswered(api, version, body)
        async with self._time_limit(None):
            await self._connection.drained()

    async def close(self) -> None:
        """Send what is buffered, if the broker reads it, and close the connection."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._connection.close()
        except TimeoutError:
            self._connection.abort()

    def abort(self) -> None:
        self._connection.abort()

    def _time_limit(self, timeout_s: float | None) -> "_TimeLimit":
        return _TimeLimit(self, self._timeout_s if timeout_s is None else timeout_s)


class _TimeLimit:
    """Aborts the connection, with all its pending requests, if a response takes too long."""

    __slots__ = ("_limit", "_link", "_timeout_s")

    def __init__(self, link: VersionedConnection, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self._limit = asyncio.timeout(timeout_s)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await self._limit.__aexit__(*raised)
        except TimeoutError:
            self._link.abort()
            text = f"{self._link.address} did not respond within {self._timeout_s:g} s"
            raise ConnectionLost(text) from None


async def _fetch_versions(
    connection: PeerConnection,
) -> tuple[dict[int, tuple[int, int]], dict[str, int]]:
    answer = await connection.call(
        ApiKey.API_VERSIONS,
        _API_VERSIONS_VERSION,
        {"client_software_name": "suwi", "client_software_version": __version__},
    )
    check(answer)
    versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    return versions, {f.name: f.max_version_level for f in answer.finalized_features}
