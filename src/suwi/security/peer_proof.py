"""How brokers prove to each other that they are of one cluster: by a secret of the metadata store,
which only brokers can read.

Sans-IO. The one that connects sends its node id and a nonce (`hello`); the other answers with a
nonce and its own proof (`accept`), and is sent a proof in return (`respond`), which it checks
(`is_proven`). Proofs are HMACs of all that was said: each is good for one connection between two
brokers of one cluster.
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
_ANSWER: Final = struct.Struct(f">{_NONCE_BYTES}s{_PROOF_BYTES}s")
_SAID: Final = struct.Struct(f">ii{_NONCE_BYTES}s{_NONCE_BYTES}s")
# Whose proof it is: one that was sent cannot be sent back.
_CONNECTING: Final = b"suwi peer 1, connecting\0"
_ACCEPTING: Final = b"suwi peer 1, accepting\0"


class PeerChallenge(NamedTuple):
    """What both sides have said, and have to prove."""

    connecting: NodeId
    accepting: NodeId
    nonce: bytes
    """Of the one that connects."""
    answer: bytes
    """The nonce of the other."""


class PeerProver:
    """One broker's side of every proof."""

    def __init__(self, node_id: NodeId, random: Random) -> None:
        self._node_id = node_id
        self._random = random
        self._secret = b""
        self._cluster_id = ""

    def learn(self, secret: bytes, cluster_id: str) -> None:
        """To be called before anything is proven."""
        assert secret
        self._secret, self._cluster_id = secret, cluster_id

    # -- who connects ----------------------------------------------------------------------------

    def hello(self) -> bytes:
        return _HELLO.pack(self._node_id, self._random.token(_NONCE_BYTES))

    def respond(self, to: NodeId, hello: bytes, answer: bytes) -> bytes:
        """The proof, where the other broker has shown that it is the one meant. Raises Refused."""
        if len(answer) != _ANSWER.size:
            raise Refused(f"broker {to} answered with {len(answer)} bytes")
        (node_id, nonce), (its_nonce, its_proof) = _HELLO.unpack(hello), _ANSWER.unpack(answer)
        challenge = PeerChallenge(node_id, to, nonce, its_nonce)
        if not hmac.compare_digest(its_proof, self._proof(_ACCEPTING, challenge)):
            raise Refused(f"who listens there is not broker {to} of this cluster")
        return self._proof(_CONNECTING, challenge)

    # -- who accepts -----------------------------------------------------------------------------

    def accept(self, hello: bytes) -> tuple[PeerChallenge, bytes]:
        """What the other has to prove, and the answer. Raises Refused."""
        if len(hello) != _HELLO.size:
            raise Refused(f"a broker introduces itself with {len(hello)} bytes")
        node_id, nonce = _HELLO.unpack(hello)
        own_nonce = self._random.token(_NONCE_BYTES)
        challenge = PeerChallenge(NodeId(node_id), self._node_id, nonce, own_nonce)
        return challenge, _ANSWER.pack(own_nonce, self._proof(_ACCEPTING, challenge))

    def is_proven(self, challenge: PeerChallenge, proof: bytes) -> bool:
        return hmac.compare_digest(proof, self._proof(_CONNECTING, challenge))

    def _proof(self, side: bytes, said: PeerChallenge) -> bytes:
        assert self._secret
        message = side + _SAID.pack(*said) + self._cluster_id.encode()
        return hmac.digest(self._secret, message, hashlib.sha256)
