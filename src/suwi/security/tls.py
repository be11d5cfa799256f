"""TLS contexts from Kafka's PEM settings, reloaded when the files change.

`make_server_context` and `make_client_context` validate the settings; `RenewedContext` gives a
listener its current context. OpenSSL reads certificate chains and keys only from files, so keys
given as text are written to a temporary file that only this user can read.
"""

import contextlib
import logging
import os
import re
import ssl
import tempfile  # noqa: TID251 - real files for OpenSSL; the simulation leaves TLS out
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from suwi.env import Disk
from suwi.env.problems import because

log = logging.getLogger(__name__)

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
# An encrypted key in the old format has header lines with colons, which must not be changed.
_PEM_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_JKS_START: Final = b"\xfe\xed\xfe\xed"
_PKCS12_START: Final = b"\x30"
_CONVERT: Final = {
    "JKS": "keytool -importkeystore -srckeystore {0} -destkeystore store.p12 "
    "-deststoretype PKCS12, then openssl pkcs12 -in store.p12 -out store.pem",
    "PKCS12": "openssl pkcs12 -in {0} -out store.pem",
}

# The cipher suites: those of TLS 1.2 with OpenSSL's names.
_TLS_1_3: Final = frozenset(
    {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}
)
_TLS_1_2: Final = {
    f"TLS_{exchange}_WITH_{standard}": f"{exchange.replace('_', '-')}-{name}"
    for exchange in ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA")
    for standard, name in (
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}


class BadTls(ValueError):
    """Invalid TLS settings or files; the text names them, never a secret."""


@dataclass(frozen=True, slots=True)
class Store:
    """Certificates, and in a key store a private key: in a PEM file or as PEM text."""

    setting: str
    """The prefix of its configuration keys: `ssl.keystore`."""
    kind: str = "PEM"
    location: str = ""
    certificates: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)

    @property
    def is_given(self) -> bool:
        return bool(self.location or self.certificates or self.key)


class TlsSettings(NamedTuple):
    keys: Store
    trusted: Store
    client_auth: str = "none"
    versions: Sequence[str] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: Sequence[str] = ()

    @property
    def files(self) -> list[str]:
        return [store.location for store in (self.keys, self.trusted) if store.location]


def make_server_context(settings: TlsSettings, disk: Disk) -> ssl.SSLContext:
    """Raises `BadTls`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if not settings.keys.is_given:
        raise BadTls("a certificate is missing: set ssl.keystore.location to a PEM file")
    _configure(context, settings, disk)
    context.verify_mode = CLIENT_AUTH[settings.client_auth]
    if settings.trusted.is_given:
        _trust(context, settings.trusted, disk)
    elif context.verify_mode is not ssl.CERT_NONE:
        raise BadTls(
            f"ssl.client.auth={settings.client_auth} needs the certificates to trust: set "
            "ssl.truststore.location to a PEM file"
        )
    return context


def make_client_context(
    settings: TlsSettings, disk: Disk, *, check_host_name: bool = True
) -> ssl.SSLContext:
    """Without trusted certificates in the settings, uses the system's. Raises `BadTls`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _configure(context, settings, disk)
    context.check_hostname = check_host_name
    if settings.trusted.is_given:
        _trust(context, settings.trusted, disk)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


class RenewedContext:
    """A listener's context. A replaced certificate is used from the next connection on. If it is
    invalid, that is logged once, and the old one stays in use."""

    def __init__(self, listener: str, settings: TlsSettings, disk: Disk) -> None:
        """Raises `BadTls`."""
        self._listener = listener
        self._settings = settings
        self._disk = disk
        self._loaded_files = self._file_states()
        self._context = make_server_context(settings, disk)

    def current(self) -> ssl.SSLContext:
        files = self._file_states()
        if files != self._loaded_files:
            self._loaded_files = files
            try:
                self._context = make_server_context(self._settings, self._disk)
            except BadTls as error:
                log.error(
                    "changed certificates are invalid, the old ones stay in use",
                    extra=because(error, listener=self._listener),
                )
            else:
                log.info("certificates reloaded", extra={"listener": self._listener})
        return self._context

    def _file_states(self) -> list[tuple[int, int] | None]:
        return [self._file_state(path) for path in self._settings.files]

    def _file_state(self, path: str) -> tuple[int, int] | None:
        try:
            return self._disk.modified_ms(path), self._disk.size(path)
        except OSError:
            return None  # being replaced


def _configure(context: ssl.SSLContext, settings: TlsSettings, disk: Disk) -> None:
    versions = [VERSIONS[version] for version in settings.versions]
    if not versions:
        raise BadTls("ssl.enabled.protocols is empty")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if settings.cipher_suites:
        try:
            _choose_cipher_suites(context, settings.cipher_suites)
        except ValueError as error:
            raise BadTls(f"ssl.cipher.suites: {error}") from None
    if settings.keys.is_given:
        _load_keys(context, settings.keys, disk)


def _load_keys(context: ssl.SSLContext, store: Store, disk: Disk) -> None:
    if not store.location and not (store.certificates and store.key):
        raise BadTls(
            f"{store.setting}.certificate.chain and {store.setting}.key must be set together"
        )
    pem = _read_pem(store, disk)
    where = store.location or store.setting
    # OpenSSL's error would not say which of them is missing.
    if "CERTIFICATE-----" not in pem or "PRIVATE KEY-----" not in pem:
        raise BadTls(f"{where}: must contain a certificate and its private key in PEM format")
    if "ENCRYPTED" in pem and not store.key_password:
        raise BadTls(f"{where}: the private key is encrypted: set ssl.key.password")
    if store.location:
        _load_chain(context, store, store.location, None)
        return
    with _private_file(store.certificates) as chain, _private_file(store.key) as key:
        _load_chain(context, store, chain, key)


def _load_chain(context: ssl.SSLContext, store: Store, chain: str, key: str | None) -> None:
    # A function: without a password OpenSSL would prompt for one at the terminal.
    def password() -> str:
        return store.key_password

    where = store.location or store.setting
    try:
        context.load_cert_chain(chain, key, password)
    except ssl.SSLError as error:
        raise BadTls(f"{where}: {_reason(error)}") from None
    except OSError as error:
        raise BadTls(f"{where}: {error.strerror}") from None


def _trust(context: ssl.SSLContext, store: Store, disk: Disk) -> None:
    where = store.location or f"{store.setting}.certificates"
    pem = _read_pem(store, disk)
    if "CERTIFICATE-----" not in pem:
        raise BadTls(f"{where}: contains no certificate in PEM format")
    try:
        context.load_verify_locations(cadata=_in_lines(pem))
    except ssl.SSLError as error:
        raise BadTls(f"{where}: {_reason(error)}") from None


def _read_pem(store: Store, disk: Disk) -> str:
    """The PEM text of a store. Java's formats are refused with a hint how to convert them."""
    kind = store.kind.upper()
    data = b""
    if kind == "PEM" and store.location:
        try:
            data = disk.read_bytes(store.location)
        except OSError as error:
            raise BadTls(f"{store.location}: {error.strerror}") from None
        if data.startswith(_JKS_START):
            kind = "JKS"
        elif data.startswith(_PKCS12_START):
            kind = "PKCS12"
    if kind == "PEM":
        text = data.decode("ascii", "replace")
        return text if store.location else store.certificates + store.key
    if kind not in _CONVERT:
        raise BadTls(f"{store.setting}.type={store.kind}: allowed: PEM")
    how = _CONVERT[kind].format(store.location or "FILE")
    raise BadTls(
        f"{store.setting} is a {kind} store, which is not supported: convert it to PEM with {how}, "
        f"and set {store.setting}.type=PEM"
    )


def _reason(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the private key does not match the certificate"
    # Some versions of OpenSSL give no reason for a wrong password.
    reason = (error.reason or "").replace("_", " ").lower()
    return f"it cannot be read ({reason or 'damaged'}); is ssl.key.password correct?"


def _in_lines(text: str) -> str:
    """PEM with the line breaks that OpenSSL needs; in properties files it is often one line."""
    lines = []
    for kind, body in _PEM_BLOCK.findall(text):
        inner = [body.strip()] if ":" in body else body.split()
        lines += [f"-----BEGIN {kind}-----", *inner, f"-----END {kind}-----", ""]
    return "\n".join(lines)


@contextlib.contextmanager
def _private_file(text: str) -> Iterator[str]:
    handle, path = tempfile.mkstemp(prefix="suwi-")  # mode 600
    try:
        os.write(handle, _in_lines(text).encode())
        os.close(handle)
        yield path
    finally:
        os.remove(path)


def _choose_cipher_suites(context: ssl.SSLContext, names: Sequence[str]) -> None:
    """Allow only these suites, by the standard names that Kafka uses. Python can enable those of
    TLS 1.3 only all together. Raises `ValueError` with the allowed names."""
    unknown = [name for name in names if name not in _TLS_1_2 and name not in _TLS_1_3]
    if unknown:
        allowed = ", ".join([*sorted(_TLS_1_3), *_TLS_1_2])
        raise ValueError(f"{unknown[0]!r} is not among {allowed}")
    for_1_3 = _TLS_1_3 & set(names)
    for_1_2 = [_TLS_1_2[name] for name in names if name in _TLS_1_2]
    if for_1_3 and for_1_3 != _TLS_1_3:
        missing = ", ".join(sorted(_TLS_1_3 - for_1_3))
        raise ValueError(
            f"the three suites of TLS 1.3 can only be enabled together: add {missing}, or none"
        )
    if not for_1_3:
        context.maximum_version = min(context.maximum_version, ssl.TLSVersion.TLSv1_2)
    if not for_1_2:
        context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_3)
    if context.minimum_version > context.maximum_version:
        raise ValueError("none of the suites is for a version in ssl.enabled.protocols")
    if for_1_2:
        context.set_ciphers(":".join(for_1_2))
