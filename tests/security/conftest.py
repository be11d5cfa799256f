"""One broker with every kind of listener, and its certificates, for all tests here."""

from collections.abc import Iterator

import pytest

from suwi.security.scram import ScramMechanism
from suwi.wire.versions import ApiKey
from tests.raw_client import RawClient
from tests.security.certificates import Authority
from tests.security.secure_broker import PASSWORDS, SCRAM_PASSWORDS, SecureBroker

SALT = b"as random as any"
ITERATIONS = 4096


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "ca")


@pytest.fixture(scope="session")
def broker(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecureBroker]:
    folder = tmp_path_factory.mktemp("secure")
    with SecureBroker(folder, authority, authority.issue("broker")) as process:
        with RawClient(process.address) as client:
            add_scram_users(client, SCRAM_PASSWORDS)
        yield process
        assert "Traceback" not in process.log
        for secret in [*PASSWORDS.values(), *SCRAM_PASSWORDS.values(), "PRIVATE KEY"]:
            assert secret not in process.log


def add_scram_users(client: RawClient, passwords: dict[str, str]) -> None:
    upsertions = [
        {
            "name": name,
            "mechanism": mechanism.number,
            "iterations": ITERATIONS,
            "salt": SALT,
            "salted_password": mechanism.salted_password(password, SALT, ITERATIONS),
        }
        for name, password in passwords.items()
        for mechanism in ScramMechanism
    ]
    answer = client.ask(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": [], "upsertions": upsertions}
    )
    assert [(r.user, r.error_code) for r in answer.results] == [(n, 0) for n in passwords]
