"""Mutual authentication of the brokers of a cluster, by a secret in the metadata store.

Sans-IO. Only brokers can read the secret. The connecting broker sends its node id and a nonce
(`hello`); the accepting broker responds with a nonce and its proof (`accept`); the connecting
broker checks it and sends its own proof (`respond`), which the accepting broker checks
(`is_proven`). Proofs are HMACs over both node ids, both nonces and the cluster id, so each is valid
for one connection between two brokers.
Invariant: the secret is in no message, no error and no `repr`.
"""

import hashlib
import hmac
import struct
from typing import Final, NamedTuple

from suwi.env import Random
from suwi.model.ids import NodeId
from suwi.security.mechanism import Refused

_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = hashlib.sha256().digest_size
_HELLO: Final = struct.Struct(f">i{_NONCE_BYTES}s")
_RESPONSE: Final = struct.Struct(f">{_NONCE_BYTES}s{_PROOF_BYTES}s")
_TRANSCRIPT: Final = struct.Struct(f">ii{_NONCE_BYTES}s{_NONCE_BYTES}s")
# Different for each side, so that a proof cannot be reflected to its sender.
_CONNECTING: Final = b"suwi peer 1, connecting\0"
_ACCEPTING: Final = b"suwi peer 1, accepting\0"


class PeerChallenge(NamedTuple):
    """The values exchanged by both sides, over which the proofs are computed."""

    connecting: NodeId
    accepting: NodeId
    nonce: bytes
    """The nonce of the connecting broker."""
    answer: bytes
    """The nonce of the accepting broker."""


class PeerProver:
    """Computes and checks proofs for one broker, on either side of a connection."""

    def __init__(self, node_id: NodeId, random: Random) -> None:
        self._node_id = node_id
        self._random = random
        self._secret = b""
        self._cluster_id = ""

    def learn(self, secret: bytes, cluster_id: str) -> None:
        """Set the secret; must be called before any other method."""
        assert secret
        self._secret, self._cluster_id = secret, cluster_id

    # -- the connecting side ---------------------------------------------------------------------

    def hello(self) -> bytes:
        return _HELLO.pack(self._node_id, self._random.token(_NONCE_BYTES))

    def respond(self, to: NodeId, hello: bytes, answer: bytes) -> bytes:
        """Check the other broker's proof and return this broker's. Raises Refused."""
        if len(answer) != _RESPONSE.size:
            raise Refused(f"broker {to} sent a response of {len(answer)} bytes")
        (node_id, nonce), (its_nonce, its_proof) = _HELLO.unpack(hello), _RESPONSE.unpack(answer)
        challenge = PeerChallenge(node_id, to, nonce, its_nonce)
        if not hmac.compare_digest(its_proof, self._proof(_ACCEPTING, challenge)):
            raise Refused(f"the process listening there is not broker {to} of this cluster")
        return self._proof(_CONNECTING, challenge)

    # -- the accepting side ----------------------------------------------------------------------

    def accept(self, hello: bytes) -> tuple[PeerChallenge, bytes]:
        """The challenge that the other broker has to prove, and the response. Raises Refused."""
        if len(hello) != _HELLO.size:
            raise Refused(f"the broker's hello has {len(hello)} bytes")
        node_id, nonce = _HELLO.unpack(hello)
        own_nonce = self._random.token(_NONCE_BYTES)
        challenge = PeerChallenge(NodeId(node_id), self._node_id, nonce, own_nonce)
        return challenge, _RESPONSE.pack(own_nonce, self._proof(_ACCEPTING, challenge))

    def is_proven(self, challenge: PeerChallenge, proof: bytes) -> bool:
        return hmac.compare_digest(proof, self._proof(_CONNECTING, challenge))

    def _proof(self, side: bytes, challenge: PeerChallenge) -> bytes:
        assert self._secret
        message = side + _TRANSCRIPT.pack(*challenge) + self._cluster_id.encode()
        return hmac.digest(self._secret, message, hashlib.sha256)
