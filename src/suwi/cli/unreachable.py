"""Why there is no talking to a broker, in words that help: what is wrong, and where to look."""

import ssl
from typing import NamedTuple

from suwi.client.connection import ConnectionLost
from suwi.client.errors import Unreachable, reason


class Access(NamedTuple):
    """How a command tries to get in, as its client.properties says."""

    file: str = ""
    protocol: str = "PLAINTEXT"
    has_certificate: bool = False

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_log_in(self) -> bool:
        return self.protocol.startswith("SASL_")


class HungUp(ConnectionLost):
    """A broker that gives its versions and then closes the connection, as those do that ask for a
    log-in."""

    def __init__(self) -> None:
        super().__init__("it hung up at the first request")


def explain(error: Unreachable, access: Access) -> str:
    tried = "; ".join(
        f"no broker at {address}: {_why(why, access)}" for address, why in error.tried
    )
    return f"{tried}. {_hint([why for _, why in error.tried], access)}"


def _why(error: Exception, access: Access) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if _is_broken_handshake(error, access):
        return "it hung up during the TLS handshake"
    return reason(error)


def _is_broken_handshake(error: Exception, access: Access) -> bool:
    is_end = isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError)
    return access.has_tls and is_end and not isinstance(error, ConnectionLost)


def _hint(errors: list[Exception], access: Access) -> str:
    if any(isinstance(error, ssl.SSLCertVerificationError) for error in errors):
        return f"Name the authority that signed it as ssl.truststore.location in {access.file}"
    if any(isinstance(e, ssl.SSLError) or _is_broken_handshake(e, access) for e in errors):
        return f"It may have no TLS there: see security.protocol in {access.file}"
    if any(isinstance(error, ConnectionLost) for error in errors):
        return _hint_for_the_stranger(access)
    if any(isinstance(error, TimeoutError) for error in errors):
        return "Somebody listens there who does not talk like a broker, or is too busy to"
    return "Start one with `suwi serve`, or name another with --broker HOST:PORT"


def _hint_for_the_stranger(access: Access) -> str:
    if not access.file:
        return "If it asks for TLS or a log-in, say how with --command-config FILE"
    lacking = []
    if not access.has_tls:
        lacking.append("TLS (security.protocol)")
    elif not access.has_certificate:
        lacking.append("a certificate of yours (ssl.keystore.location)")
    if not access.has_log_in:
        lacking.append(f"a log-in (security.protocol=SASL_{access.protocol})")
    if not lacking:
        return f"See whether all that {access.file} says is what it asks for"
    return f"It may ask for {' or '.join(lacking)}, which {access.file} does not have"
