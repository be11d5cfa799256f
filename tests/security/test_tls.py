"""TLS contexts from PEM files, PEM text and settings; errors do not contain secrets."""

import os
import shutil
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from suwi.env import LocalDisk
from suwi.security.tls import (
    BadTls,
    RenewedContext,
    Store,
    TlsSettings,
    make_client_context,
    make_server_context,
)
from tests.security.certificates import Authority, Identity

DISK = LocalDisk()
PASSWORD = "open sesame"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Identity:
    return authority.issue("server")


@pytest.fixture(scope="module")
def encrypted(authority: Authority) -> Identity:
    return authority.issue("encrypted", password=PASSWORD)


def settings(
    keys: Store | None = None, trusted: Store | None = None, **more: object
) -> TlsSettings:
    return TlsSettings(keys or Store("ssl.keystore"), trusted or Store("ssl.truststore"), **more)


def in_file(path: Path, password: str = "") -> Store:
    return Store("ssl.keystore", location=str(path), key_password=password)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str, str]:
    """Version and cipher suite that both agree on; no network."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    other = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [one, other]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    version, cipher = other.version(), other.cipher()
    assert version is not None
    assert cipher is not None
    return version, cipher[0]


@pytest.fixture(scope="module")
def client(authority: Authority) -> ssl.SSLContext:
    trusted = Store("ssl.truststore", location=str(authority.certificate))
    return make_client_context(settings(trusted=trusted), DISK)


# -- valid settings -------------------------------------------------------------------------------


def test_a_key_store_in_one_file(server: Identity, client: ssl.SSLContext) -> None:
    context = make_server_context(settings(in_file(server.both)), DISK)
    assert shake_hands(context, client)[0] == "TLSv1.3"


def test_certificate_and_key_as_text(
    server: Identity, client: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    certificate, key = server.certificate.read_text(), server.key.read_text()
    store = Store("ssl.keystore", certificates=certificate, key=key)
    shake_hands(make_server_context(settings(store), DISK), client)
    assert os.listdir(tmp_path) == []


def test_text_on_one_line_as_properties_files_have_it(
    server: Identity, client: ssl.SSLContext
) -> None:
    certificate, key = (
        " ".join(path.read_text().split("\n")) for path in (server.certificate, server.key)
    )
    store = Store("ssl.keystore", certificates=certificate, key=key)
    shake_hands(make_server_context(settings(store), DISK), client)


def test_an_encrypted_key(encrypted: Identity, client: ssl.SSLContext) -> None:
    context = make_server_context(settings(in_file(encrypted.both, PASSWORD)), DISK)
    shake_hands(context, client)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_one_version_only(server: Identity, client: ssl.SSLContext, version: str) -> None:
    only = settings(in_file(server.both), versions=[version])
    assert shake_hands(make_server_context(only, DISK), client)[0] == version


def test_cipher_suites_by_their_standard_names(server: Identity, client: ssl.SSLContext) -> None:
    suites = ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]
    chosen = settings(in_file(server.both), cipher_suites=suites)
    agreed = shake_hands(make_server_context(chosen, DISK), client)
    assert agreed == ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256")


def test_cipher_suites_of_tls_1_3_only(server: Identity, client: ssl.SSLContext) -> None:
    suites = ["TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"]
    chosen = settings(in_file(server.both), cipher_suites=suites)
    context = make_server_context(chosen, DISK)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert shake_hands(context, client)[0] == "TLSv1.3"


# -- invalid settings -----------------------------------------------------------------------------


def refusal(tls: TlsSettings) -> str:
    with pytest.raises(BadTls) as refused:
        make_server_context(tls, DISK)
    text = str(refused.value)
    assert PASSWORD not in text
    assert PASSWORD not in repr(tls)
    return text


def test_no_certificate_at_all() -> None:
    assert refusal(settings()).startswith("a certificate is missing: set ssl.keystore.location")


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "none.pem"
    assert refusal(settings(in_file(path))) == f"{path}: No such file or directory"


def test_a_certificate_without_its_key(server: Identity) -> None:
    assert "certificate and its private key" in refusal(settings(in_file(server.certificate)))
    assert "certificate and its private key" in refusal(settings(in_file(server.key)))


def test_a_key_of_another_certificate(
    server: Identity, encrypted: Identity, tmp_path: Path
) -> None:
    mixed = tmp_path / "mixed.pem"
    mixed.write_bytes(encrypted.certificate.read_bytes() + server.key.read_bytes())
    assert "does not match the certificate" in refusal(settings(in_file(mixed)))


def test_an_encrypted_key_without_its_password_does_not_prompt(encrypted: Identity) -> None:
    assert "ssl.key.password" in refusal(settings(in_file(encrypted.both)))


def test_an_encrypted_key_with_a_wrong_password(encrypted: Identity) -> None:
    assert "ssl.key.password" in refusal(settings(in_file(encrypted.both, f"{PASSWORD}?")))


def test_a_key_without_a_certificate(server: Identity) -> None:
    store = Store("ssl.keystore", key=server.key.read_text())
    assert "must be set together" in refusal(settings(store))


def test_client_certificates_without_anything_to_trust(server: Identity) -> None:
    said = refusal(settings(in_file(server.both), client_auth="required"))
    assert said.startswith("ssl.client.auth=required needs the certificates to trust")


@pytest.mark.parametrize(
    ("suites", "words"),
    [
        (["RC4-MD5"], "'RC4-MD5' is not among TLS_AES_128_GCM_SHA256"),
        (["TLS_RSA_WITH_AES_128_CBC_SHA"], "is not among"),
        (
            ["TLS_AES_256_GCM_SHA384"],
            "only be enabled together: add TLS_AES_128_GCM_SHA256, TLS_CHACHA20",
        ),
    ],
)
def test_unsupported_cipher_suites_are_refused(
    server: Identity, suites: list[str], words: str
) -> None:
    said = refusal(settings(in_file(server.both), cipher_suites=suites))
    assert said.startswith("ssl.cipher.suites: ")
    assert words in said


def test_cipher_suites_for_disabled_tls_versions_are_refused(server: Identity) -> None:
    suites = ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]
    tls = settings(in_file(server.both), cipher_suites=suites, versions=["TLSv1.3"])
    assert "none of the suites is for a version" in refusal(tls)


def test_java_key_stores_are_refused_with_a_conversion_hint(
    authority: Authority, server: Identity, tmp_path: Path
) -> None:
    pkcs12 = authority.pkcs12(server, PASSWORD)
    assert f"openssl pkcs12 -in {pkcs12} -out store.pem" in refusal(settings(in_file(pkcs12)))
    jks = tmp_path / "store.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    assert f"keytool -importkeystore -srckeystore {jks}" in refusal(settings(in_file(jks)))
    for kind in ("JKS", "PKCS12", "jks"):
        store = replace(in_file(server.both), kind=kind)
        assert "convert it to PEM" in refusal(settings(store))
    odd = replace(in_file(server.both), kind="BKS")
    assert refusal(settings(odd)) == "ssl.keystore.type=BKS: allowed: PEM"


# -- reloading ------------------------------------------------------------------------------------


def test_a_certificate_is_reloaded_when_its_file_changes(
    authority: Authority, server: Identity, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "live.pem"
    shutil.copy(server.both, path)
    renewed = RenewedContext("SSL", settings(in_file(path)), DISK)
    first = renewed.current()
    assert renewed.current() is first
    shutil.copy(authority.issue("next").both, path)
    os.utime(path, (1, 1))  # independent of the clock's resolution
    second = renewed.current()
    assert second is not first
    assert renewed.current() is second
    assert "the old ones stay" not in caplog.text


def test_after_an_invalid_certificate_the_old_one_stays_in_use_and_it_is_logged_once(
    server: Identity, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "live.pem"
    shutil.copy(server.both, path)
    renewed = RenewedContext("SSL", settings(in_file(path)), DISK)
    first = renewed.current()
    path.write_text("-----BEGIN nonsense")
    for _ in range(3):
        assert renewed.current() is first
    assert caplog.text.count("the old ones stay") == 1
    path.unlink()
    assert renewed.current() is first
    shutil.copy(server.both, path)
    os.utime(path, (1, 1))
    assert renewed.current() is not first
