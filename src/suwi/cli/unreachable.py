"""Explains why a broker cannot be reached, with a hint what to do."""

import ssl
from typing import NamedTuple

from suwi.client.connection import ConnectionLost
from suwi.client.errors import Unreachable, reason


class Access(NamedTuple):
    """The security settings of a command, from its client.properties."""

    file: str = ""
    protocol: str = "PLAINTEXT"
    has_certificate: bool = False

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")


class ClosedAtFirstRequest(ConnectionLost):
    """A broker that closes the connection after ApiVersions, as one that requires SASL does."""

    def __init__(self) -> None:
        super().__init__("it closed the connection at the first request")


def explain(error: Unreachable, access: Access) -> str:
    tried = "; ".join(
        f"no broker at {address}: {_reason_text(cause, access)}" for address, cause in error.tried
    )
    return f"{tried}. {_hint([cause for _, cause in error.tried], access)}"


def _reason_text(error: Exception, access: Access) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if _is_broken_handshake(error, access):
        return "it closed the connection during the TLS handshake"
    return reason(error)


def _is_broken_handshake(error: Exception, access: Access) -> bool:
    is_disconnect = isinstance(
        error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError
    )
    return access.has_tls and is_disconnect and not isinstance(error, ConnectionLost)


def _hint(errors: list[Exception], access: Access) -> str:
    if any(isinstance(error, ssl.SSLCertVerificationError) for error in errors):
        return f"Set ssl.truststore.location in {access.file} to the authority that signed it"
    if any(isinstance(e, ssl.SSLError) or _is_broken_handshake(e, access) for e in errors):
        return f"The listener may have no TLS: see security.protocol in {access.file}"
    if any(isinstance(error, ConnectionLost) for error in errors):
        return _security_hint(access)
    if any(isinstance(error, TimeoutError) for error in errors):
        return "Another program may listen there, or the broker is overloaded"
    return "Start one with `suwi serve`, or name another with --broker HOST:PORT"


def _security_hint(access: Access) -> str:
    if not access.file:
        return "If it requires TLS or SASL, configure it with --command-config FILE"
    missing = []
    if not access.has_tls:
        missing.append("TLS (security.protocol)")
    elif not access.has_certificate:
        missing.append("a client certificate (ssl.keystore.location)")
    if not access.has_sasl:
        missing.append(f"SASL (security.protocol=SASL_{access.protocol})")
    if not missing:
        return f"Check whether the settings in {access.file} are what it requires"
    return f"It may require {' or '.join(missing)}, which {access.file} does not have"
