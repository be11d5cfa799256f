"""An issuer of tokens: its keys, what it publishes of them, and the tokens it signs."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

NAME, AUDIENCE, SCOPE = "https://issuer.example", "suwi", "streams"


def segment(part: bytes | dict[str, Any]) -> str:
    text = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


class SigningKey:
    def __init__(self, key_id: str, algorithm: str = "RS256", bits: int = 2048) -> None:
        self.id = key_id
        self.algorithm = algorithm
        self.private: Any
        if algorithm.startswith("ES"):
            curve = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
            self.private = ec.generate_private_key(curve[algorithm])
        else:
            self.private = rsa.generate_private_key(public_exponent=65537, key_size=bits)

    @property
    def jwk(self) -> dict[str, Any]:
        """The public key, as it is published."""
        kind = ECAlgorithm if self.algorithm.startswith("ES") else RSAAlgorithm
        public: dict[str, Any] = kind.to_jwk(self.private.public_key(), as_dict=True)
        public.pop("key_ops", None)
        return {**public, "kid": self.id, "use": "sig"}


LIFETIME_S = 36_000.0
"""Longer than any run of the tests: some tokens are made when their module is imported."""


class Issuer:
    def __init__(self, *keys: SigningKey) -> None:
        self.keys = list(keys) or [SigningKey("first")]

    @property
    def jwks(self) -> bytes:
        return json.dumps({"keys": [key.jwk for key in self.keys]}).encode()

    def publish(self, path: Path) -> None:
        path.write_bytes(self.jwks)

    def claims(
        self, user: str = "alice", lifetime_s: float = LIFETIME_S, **more: Any
    ) -> dict[str, Any]:
        """As a token for the broker has them; None leaves one out."""
        now_s = time.time()
        claims = {
            "iss": NAME,
            "aud": AUDIENCE,
            "sub": user,
            "scope": f"other {SCOPE}",
            "iat": now_s,
            "exp": now_s + lifetime_s,
            **more,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, user: str = "alice", lifetime_s: float = LIFETIME_S, **more: Any) -> str:
        return self.sign(self.claims(user, lifetime_s, **more))

    def sign(
        self,
        claims: dict[str, Any] | bytes,
        key: SigningKey | None = None,
        algorithm: str = "",
        **header: Any,
    ) -> str:
        """`header`: more of it, or other values; None leaves one out."""
        key = key or self.keys[0]
        algorithm = algorithm or key.algorithm
        fields = {"alg": algorithm, "typ": "JWT", "kid": key.id, **header}
        head = {name: value for name, value in fields.items() if value is not None}
        payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
        signed = f"{segment(head)}.{segment(payload)}"
        signature = jwt.get_algorithm_by_name(algorithm).sign(signed.encode(), key.private)
        return f"{signed}.{segment(signature)}"


def attacks(issuer: Issuer) -> dict[str, str]:
    """Tokens that must not be accepted, by what is wrong with them."""
    import hashlib
    import hmac

    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    claims, (own, *_) = issuer.claims(), issuer.keys
    stranger = SigningKey(own.id)
    head, payload, signature = issuer.token().split(".")
    unsigned = segment({"alg": "none", "typ": "JWT", "kid": own.id})
    hs256 = f"{segment({'alg': 'HS256', 'typ': 'JWT', 'kid': own.id})}.{payload}"
    pem = own.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    mac = segment(hmac.digest(pem, hs256.encode(), hashlib.sha256))
    admin = json.dumps({**claims, "sub": "admin"}).encode()
    twice = json.dumps(claims)[:-1].encode() + b', "sub": "admin"}'
    return {
        "none": f"{unsigned}.{payload}.",
        "none with a signature": f"{unsigned}.{payload}.{signature}",
        "None": f"{segment({'alg': 'None', 'kid': own.id})}.{payload}.",
        "no algorithm": f"{segment({'kid': own.id})}.{payload}.{signature}",
        "HS256 with the public key": f"{hs256}.{mac}",
        "another algorithm than signed with": issuer.sign(claims, algorithm="RS256", alg="PS256"),
        "an algorithm of another key type": issuer.sign(claims, alg="ES256"),
        "wrong key": issuer.sign(claims, stranger),
        "key in the header": issuer.sign(claims, stranger, jwk=stranger.jwk),
        "url of a key in the header": issuer.sign(claims, stranger, jku="file:///tmp/keys"),
        "certificate in the header": issuer.sign(claims, stranger, x5c=["AAAA"]),
        "unknown key id": issuer.sign(claims, SigningKey("unknown")),
        "path as key id": issuer.sign(claims, kid="../../etc/passwd\0"),
        "key id that is no text": issuer.sign(claims, kid=["first"]),
        "changed claims": f"{head}.{segment(admin)}.{signature}",
        "no signature": f"{head}.{payload}.",
        "two parts": f"{head}.{payload}",
        "five parts": f"{head}.{payload}.{signature}.{signature}.{signature}",
        "not a token": "secret",
        "huge": issuer.token(padding="x" * 70_000),
        "critical extension": issuer.sign(claims, crit=["exp"]),
        "unencoded payload": issuer.sign(claims, b64=False, crit=["b64"]),
        "claims that are no object": issuer.sign(b'["sub"]'),
        "claims that are not JSON": issuer.sign(b"{"),
        "deeply nested": issuer.sign(b'{"a":' * 5_000 + b"1" + b"}" * 5_000),
        "name twice": issuer.sign(twice),
        "wrong issuer": issuer.token(iss="https://evil.example"),
        "no issuer": issuer.token(iss=None),
        "wrong audience": issuer.token(aud="other"),
        "wrong audiences": issuer.token(aud=["other", ["suwi"]]),
        "no audience": issuer.token(aud=None),
        "missing scope": issuer.token(scope="other streamsx"),
        "no scope": issuer.token(scope=None),
        "expired": issuer.token(lifetime_s=-31),
        "no end": issuer.token(exp=None),
        "endless": issuer.sign(json.dumps({**claims, "exp": float("inf")}).encode()),
        "end that is no number": issuer.token(exp="9999999999"),
        "end that is true": issuer.token(exp=True),
        "end out of range": issuer.sign(json.dumps({**claims, "exp": 10**400}).encode()),
        "not valid yet": issuer.token(nbf=time.time() + 36_000),
        "issued in the future": issuer.token(iat=time.time() + 36_000),
        "no time of issue": issuer.token(iat=None),
        "no user": issuer.token(sub=None),
        "empty user": issuer.token(sub="  "),
        "user that is no text": issuer.token(sub=7),
        "user with control characters": issuer.token(sub="alice\nadmin"),
    }
