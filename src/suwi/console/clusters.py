"""The clusters that a console shows. They are fixed at its start: no request names a host."""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from suwi.client.addresses import Address
from suwi.client.cluster import Cluster
from suwi.client.settings import ClientSettings
from suwi.client.versioned_connection import Connect
from suwi.console.hour import Hour
from suwi.console.record_values import RecordValues
from suwi.decoders.registry import Registry
from suwi.env import Env
from suwi.local_cluster.served_brokers import Faults

T = TypeVar("T")
TIMEOUT_S = 5.0
_SETTINGS = ClientSettings(
    client_id="suwi-console",
    connect_timeout_s=TIMEOUT_S,
    request_timeout_s=TIMEOUT_S,
    retry_timeout_s=TIMEOUT_S,
)


class Breakable(NamedTuple):
    """A cluster of this machine whose faults the console may cause."""

    faults: Faults
    directory: str


class ClusterAddress(NamedTuple):
    """How a cluster is reached."""

    name: str
    addresses: Sequence[Address]
    connect: Connect | None
    """None: without TLS and SASL."""
    options: Sequence[str]
    """What a command needs to reach it: `--broker 127.0.0.1:9092`."""
    options_of_users: Sequence[str] = ()
    """The same for users who log in: with a file of their own, not the console's."""
    log_in: Callable[[str, str], Connect] | None = None
    """Connects as another user, by name and password; None if the cluster has no such users."""
    registry: Registry | None = None
    """Where the schemas of its records are."""
    breakable: Breakable | None = None


class ShownCluster:
    """One cluster of a console, with the connections that all pages of a session share."""

    def __init__(
        self,
        address: ClusterAddress,
        env: Env,
        *,
        connect: Connect | None = None,
        hour: Hour | None = None,
        user: str | None = None,
    ) -> None:
        self.name = address.name
        self.breakable = address.breakable
        self.clock = env.clock
        self.user = user
        """Who has logged in, and whose connections these are."""
        self.is_own = connect is None
        """Its connections are the console's own, not those of a user who has logged in."""
        self.is_closed = False
        """Its session has ended: what still runs for it stops."""
        self.hour = hour or Hour()
        self._address = address
        self._env = env
        self._kept: dict[str, tuple[tuple[str, ...], float, Any]] = {}
        self.values = RecordValues(address.registry)
        self.client = Cluster(
            address.addresses,
            random=env.random,
            settings=_SETTINGS,
            connect=connect or address.connect,
        )

    def as_user(self, user: str, password: str) -> "ShownCluster":
        """The same cluster by a user's own connections."""
        assert self._address.log_in is not None
        connect = self._address.log_in(user, password)
        return ShownCluster(self._address, self._env, connect=connect, hour=self.hour, user=user)

    async def keep(
        self, key: tuple[str, ...], age_s_max: float, read: Callable[[], Awaitable[T]]
    ) -> T:
        """What is expensive to read, as it was at most so long ago; one for each `key[0]`."""
        now_s = asyncio.get_running_loop().time()
        kept_key, read_s, value = self._kept.get(key[0], ((), 0.0, None))
        if kept_key != key or now_s - read_s > age_s_max:
            value = await read()
            self._kept[key[0]] = key, now_s, value
        return cast(T, value)

    def command(self, verb: str, *arguments: object, options: Sequence[object] = ()) -> str:
        """The command that shows the same in a terminal."""
        address = self._address
        given = [*options, *(address.options if self.is_own else address.options_of_users)]
        words = [*arguments, *given]
        if any(str(argument).startswith("-") for argument in arguments):
            words = [*given, "--", *arguments]  # otherwise a name would be an option
        return " ".join(["suwi", verb, *map(quoted, words)])

    def decoding_options(self) -> list[str]:
        """What `suwi consume` needs to show the same values."""
        registry = self._address.registry
        return [] if registry is None else ["--schema-registry", registry.url]


def quoted(word: object) -> str:
    """For a shell. Names are what clients chose: none may end the line or hide a part of it."""
    text = str(word)
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(f"\\x{byte:02x}" for byte in text.encode(errors="replace")) + "'"
