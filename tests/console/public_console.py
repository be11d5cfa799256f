"""A console with TLS whose users log in, and the broker whose users they are."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from suwi.cli.console import _public
from suwi.cli.console_process import cluster_address
from suwi.cli.session import Target
from tests.console.support import ConsoleThread
from tests.raw_client import RawClient
from tests.security.certificates import Authority
from tests.security.conftest import add_scram_users
from tests.security.secure_broker import PASSWORDS, SCRAM_PASSWORDS, SecureBroker

_SCRAM = "SCRAM-SHA-256"
_OWN = {_SCRAM: ("carol", SCRAM_PASSWORDS["carol"]), "PLAIN": ("alice", PASSWORDS["alice"])}


@contextmanager
def secure_broker(folder: Path) -> Iterator[SecureBroker]:
    authority = Authority(folder / "ca")
    with SecureBroker(folder, authority, authority.issue("broker")) as broker:
        with RawClient(broker.address) as client:
            add_scram_users(client, SCRAM_PASSWORDS)
        yield broker


@contextmanager
def public_console(folder: Path, secure: SecureBroker, static: Path) -> Iterator[ConsoleThread]:
    """For two clusters: users of the first log in by SCRAM, users of the second by PLAIN."""
    addresses = []
    for name, mechanism in (("first", _SCRAM), ("second", "PLAIN")):
        file = client_properties(folder, secure, mechanism)
        target = Target(secure.at("SASL_SSL"), str(file))
        addresses.append(cluster_address(target, name, with_users=True))
    own = secure.authority.issue("console")
    listening = _public("127.0.0.1", ["localhost"], str(own.certificate), str(own.key))
    trusted = ssl.create_default_context(cafile=str(secure.authority.certificate))
    with ConsoleThread(static, addresses, public=listening, trusted=trusted) as console:
        yield console


def client_properties(folder: Path, secure: SecureBroker, mechanism: str) -> Path:
    user, password = _OWN[mechanism]
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    file = folder / f"{mechanism}.properties"
    file.write_text(
        "security.protocol=SASL_SSL\n"
        f"ssl.truststore.location={secure.authority.certificate}\n"
        f"sasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required "
        f'username="{user}" password="{password}";\n'
    )
    return file
