"""`KafkaContainer` of testcontainers-python, with a broker in this process instead of a container.

    from suwi.testing import KafkaContainer  # instead of: from testcontainers.kafka import …

What describes an image or a container (its name, networks, volumes) is accepted and has no effect;
`with_env` sets the broker's configuration as in Kafka's images.
"""

from typing import Any, NoReturn, Self

from suwi.admin.server_properties import from_environment, parse_settings
from suwi.testing.cluster import Cluster

_HOST = "127.0.0.1"
_CHOSEN = ("listener", "advertised.listeners", "inter.broker", "broker.id", "node.id", "log.dir")
"""The test kit chooses these: one broker with a plain listener, in a temporary directory."""
_REFUSED = ("ssl.", "sasl.")


class KafkaContainer:
    def __init__(self, image: str = "", port: int = 9093, **_: Any) -> None:
        self.image = image
        self.port = port
        self.env: dict[str, str] = {}
        self._cluster: Cluster | None = None

    def start(self, timeout: int = 30) -> Self:
        """Returns when the broker is in service, long before any timeout."""
        settings = from_environment(self.env)
        parse_settings(settings)  # an error names the variable
        for variable, key, _ in settings:
            if key.startswith(_REFUSED):
                raise ValueError(f"{variable}: this broker has a plain listener only")
        kept = {key: value for _, key, value in settings if not key.startswith(_CHOSEN)}
        self._cluster = Cluster(brokers=1, settings=kept)
        self._cluster.start()
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def get_bootstrap_server(self) -> str:
        if self._cluster is None:
            raise RuntimeError("the broker is not running: call start(), or use `with`")
        return self._cluster.bootstrap_servers

    def get_container_host_ip(self) -> str:
        return _HOST

    def get_exposed_port(self, port: int) -> int:
        return int(self.get_bootstrap_server().rpartition(":")[2])

    # -- settings ------------------------------------------------------------------------------

    def with_env(self, key: str, value: object) -> Self:
        self.env[key] = str(value)
        return self

    def with_envs(self, **variables: object) -> Self:
        for key, value in variables.items():
            self.with_env(key, value)
        return self

    def _unchanged(self, *_: Any, **__: Any) -> Self:
        return self

    with_kraft = with_cluster_id = with_name = with_kwargs = _unchanged
    with_network = with_network_aliases = with_exposed_ports = _unchanged
    with_volume_mapping = with_tmpfs_mount = waiting_for = maybe_emulate_amd64 = _unchanged

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"there is no container: suwi.testing.KafkaContainer has no {name!r}")
