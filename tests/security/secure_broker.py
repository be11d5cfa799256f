"""A broker process with one listener of every kind, and its users."""

import re
from collections.abc import Mapping
from pathlib import Path

from tests.broker_process import BrokerProcess
from tests.security.certificates import Authority, Identity

PASSWORDS = {"alice": "alice-Passw0rd,=", "bob": 'bob\'s "quoted" one'}
SCRAM_PASSWORDS = {"carol": "carol-Passw0rd,=", "dave": "dave's own"}
PROTOCOLS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "MTLS": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "SHORT": "SASL_PLAINTEXT",
}
SESSION_MS = 1_500
FAILURE_DELAY_MS = 150


def jaas(passwords: Mapping[str, str]) -> str:
    escaped = {name: p.replace("\\", "\\\\").replace('"', '\\"') for name, p in passwords.items()}
    users = " ".join(f'user_{name}="{password}"' for name, password in escaped.items())
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"


class SecureBroker(BrokerProcess):
    """Its key store is a separate file, which a test may replace."""

    def __init__(self, folder: Path, authority: Authority, identity: Identity) -> None:
        super().__init__(folder / "data")
        self.authority = authority
        self.key_store = folder / "live.pem"
        self.key_store.write_bytes(identity.both.read_bytes())
        self._config = folder / "server.properties"
        settings = {
            "listeners": ",".join(f"{name}://127.0.0.1:0" for name in PROTOCOLS),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.key_store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.certificate),
            "listener.name.mtls.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas(PASSWORDS),
            "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas(PASSWORDS),
            "listener.name.short.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.short.plain.sasl.jaas.config": jaas(PASSWORDS),
            "listener.name.short.plain.connections.max.reauth.ms": str(SESSION_MS),
            "connection.failed.authentication.delay.ms": str(FAILURE_DELAY_MS),
        }
        lines = [f"{key}={value}".replace("\\", "\\\\") for key, value in settings.items()]
        self._config.write_text("\n".join(lines))

    def at(self, listener: str) -> str:
        """The address of a listener."""
        found = re.findall(rf"listening listener={listener} address=127\.0\.0\.1:(\d+)", self.log)
        return f"localhost:{found[-1]}"

    def _arguments(self) -> list[str]:
        # At debug level, because even there the log must not have secrets.
        level = ("--log-level", "debug")
        return ["--config", str(self._config), "--data", str(self.data), *level]
