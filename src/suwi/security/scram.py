"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): proof of a password without sending it.

`ScramServer` and `ScramClient` are the two sides of one authentication; `make_credential` makes
what a broker stores instead of a password. Passwords are UTF-8 without SASLprep, as in Kafka and
its clients.
Invariant: up to the last step the responses for a user that does not exist look like those for one
that does.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from suwi.security.mechanism import Authenticated, Challenge, Refused, Step

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
# Limits the work that an unauthenticated broker can make a client do.
_CLIENT_ITERATIONS_MAX: Final = 1_000_000
NONCE_BYTES: Final = 24
SALT_BYTES: Final = 24
_TOKEN_BYTES_MAX: Final = 16 * 1024
_MALFORMED: Final = "Authentication failed: not a SCRAM message"


class ScramMechanism(Enum):
    """SASL name, Kafka's number, hash."""

    SHA_256 = ("SCRAM-SHA-256", 1, "sha256")
    SHA_512 = ("SCRAM-SHA-512", 2, "sha512")

    def __init__(self, sasl_name: str, number: int, hash_name: str) -> None:
        self.sasl_name = sasl_name
        self.number = number
        self.hash_name = hash_name
        self.digest_bytes = hashlib.new(hash_name).digest_size

    def hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self.hash_name)

    def hash(self, data: bytes) -> bytes:
        return hashlib.new(self.hash_name, data).digest()

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)


MECHANISMS: Final = {mechanism.sasl_name: mechanism for mechanism in ScramMechanism}
MECHANISM_NUMBERS: Final = {mechanism.number: mechanism for mechanism in ScramMechanism}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a broker stores instead of a password: enough to check a client and to prove its
    knowledge to it, but not enough to log in as the user."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def make_credential(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    client_key = mechanism.hmac(salted_password, b"Client Key")
    server_key = mechanism.hmac(salted_password, b"Server Key")
    return ScramCredential(salt, iterations, mechanism.hash(client_key), server_key)


class Decoys:
    """Fake credentials of users that do not exist: always the same for the same name."""

    def __init__(self, key: bytes) -> None:
        """`key`: a secret, the same on every broker and after every restart."""
        self._key = key

    def credential(
        self, mechanism: ScramMechanism, name: str, template: ScramCredential | None
    ) -> ScramCredential:
        """A credential that no password matches, with the parameters of another user's."""
        salt_bytes = SALT_BYTES if template is None else len(template.salt)
        material = hashlib.shake_256(self._key + f"{mechanism.sasl_name}:{name}".encode())
        whole = material.digest(salt_bytes + 2 * mechanism.digest_bytes)
        keys = whole[salt_bytes:]
        return ScramCredential(
            whole[:salt_bytes],
            ITERATIONS_MIN if template is None else template.iterations,
            keys[: mechanism.digest_bytes],
            keys[mechanism.digest_bytes :],
        )


Lookup = Callable[[str], tuple[ScramCredential, bool]]
"""From a user name to a credential, and whether the user exists."""


class ScramServer:
    def __init__(self, mechanism: ScramMechanism, lookup: Lookup, nonce: str) -> None:
        """`nonce`: random, for this authentication only."""
        self._mechanism = mechanism
        self._lookup = lookup
        self._nonce = nonce
        self._credential: ScramCredential | None = None
        self._is_real = False
        self._user = ""
        self._channel_binding = b""
        self._messages = ""

    def respond(self, token: bytes) -> Step:
        if len(token) > _TOKEN_BYTES_MAX:
            raise Refused(_MALFORMED)
        try:
            text = bytes(token).decode()
            if self._credential is None:
                return Challenge(self._first(text).encode())
            return Authenticated(self._user, self._final(text, self._credential).encode())
        except (ValueError, binascii.Error):
            raise Refused(_MALFORMED, user=self._user) from None

    def _first(self, text: str) -> str:
        flag, authorization_id, bare = text.split(",", 2)
        # "p=": channel binding, which only the -PLUS mechanisms support. "y" and "n": none.
        if flag not in ("n", "y"):
            raise Refused("Authentication failed: channel binding is not supported")
        name_part, nonce_part, *_ = bare.split(",")
        self._user = _unescape(_attribute("n", name_part))
        nonce = _attribute("r", nonce_part)
        if not self._user or not nonce:
            raise ValueError
        if authorization_id and _unescape(_attribute("a", authorization_id)) != self._user:
            reason = "Authentication failed: the authorization id is not the user's name"
            raise Refused(reason, user=self._user)
        self._credential, self._is_real = self._lookup(self._user)
        self._channel_binding = f"{flag},{authorization_id},".encode()
        self._nonce = nonce + self._nonce
        salt = _base64(self._credential.salt)
        first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._messages = f"{bare},{first}"
        return first

    def _final(self, text: str, credential: ScramCredential) -> str:
        without_proof, _, proof_part = text.rpartition(",")
        binding_part, nonce_part, *_ = without_proof.split(",")
        binding = _unbase64(_attribute("c", binding_part))
        nonce = _attribute("r", nonce_part)
        proof = _unbase64(_attribute("p", proof_part))
        message = f"{self._messages},{without_proof}".encode()
        is_bound = hmac.compare_digest(binding, self._channel_binding)
        is_own_nonce = hmac.compare_digest(nonce.encode(), self._nonce.encode())
        is_proven = self._is_proven(credential, message, proof)
        if not (is_bound and is_own_nonce and is_proven and self._is_real):
            raise Refused(
                "Authentication failed during authentication due to invalid credentials with "
                f"SASL mechanism {self._mechanism.sasl_name}",
                user=self._user,
            )
        return f"v={_base64(self._mechanism.hmac(credential.server_key, message))}"

    def _is_proven(self, credential: ScramCredential, message: bytes, proof: bytes) -> bool:
        signature = self._mechanism.hmac(credential.stored_key, message)
        if len(proof) != len(signature):
            raise ValueError
        client_key = _xor(proof, signature)
        return hmac.compare_digest(self._mechanism.hash(client_key), credential.stored_key)


class ScramClient:
    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: str) -> None:
        self.name = mechanism.sasl_name
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={_escape(user)},r={nonce}"
        self._expected: bytes | None = None

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def respond(self, token: bytes) -> bytes | None:
        try:
            text = bytes(token).decode()
            if self._expected is None:
                return self._final(text)
            signature = _unbase64(_attribute("v", text.split(",")[0]))
        except (ValueError, binascii.Error):
            raise Refused("the broker sent a malformed SCRAM message") from None
        if not hmac.compare_digest(signature, self._expected):
            raise Refused("the broker does not know this user's password")
        return None

    def _final(self, text: str) -> bytes:
        nonce_part, salt_part, iterations_part, *_ = text.split(",")
        nonce = _attribute("r", nonce_part)
        salt = _unbase64(_attribute("s", salt_part))
        iterations = int(_attribute("i", iterations_part))
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise Refused("the broker's nonce does not start with the client's")
        if not ITERATIONS_MIN <= iterations <= _CLIENT_ITERATIONS_MAX:
            raise Refused(f"the broker requires {iterations} SCRAM iterations")
        mechanism = self._mechanism
        salted = mechanism.salted_password(self._password, salt, iterations)
        client_key = mechanism.hmac(salted, b"Client Key")
        without_proof = f"c={_base64(b'n,,')},r={nonce}"
        message = f"{self._bare},{text},{without_proof}".encode()
        proof = _xor(client_key, mechanism.hmac(mechanism.hash(client_key), message))
        self._expected = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={_base64(proof)}".encode()


def new_nonce(random_bytes: bytes) -> str:
    """Printable, and without a comma."""
    return _base64(random_bytes)


def _attribute(name: str, part: str) -> str:
    if not part.startswith(f"{name}="):
        raise ValueError
    return part[2:]


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    if name.count("=") != name.count("=2C") + name.count("=3D"):
        raise ValueError
    return name.replace("=2C", ",").replace("=3D", "=")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unbase64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _xor(one: bytes, other: bytes) -> bytes:
    size = len(one)
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(size, "big")
