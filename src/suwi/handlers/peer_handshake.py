"""PeerChallenge v0 and PeerProof v0, Suwi's own and never advertised: broker authentication.

They are used on an inter-broker listener without SASL. The bodies are those of
`security.peer_proof`. A proof gets no response, so that the next request can follow it immediately;
a wrong proof closes the connection.
"""

from suwi.net.answers import NO_REPLY, Answer, CloseConnection, Reply
from suwi.net.dispatch import Request
from suwi.security.mechanism import Refused
from suwi.security.peer_proof import PeerProver

_MECHANISM = "PEER"


class PeerHandshake:
    def __init__(self, prover: PeerProver, listener: str | None) -> None:
        """`listener`: the one on which brokers authenticate this way; None if there is none."""
        self._prover = prover
        self._listener = listener

    def challenge(self, request: Request) -> Answer:
        connection = request.connection
        if request.client.listener != self._listener:
            request.refused_as_broker()
            raise CloseConnection("brokers do not authenticate on this listener")
        if connection.peer_challenge is not None or request.client.is_peer:
            raise CloseConnection("a second PeerChallenge on one connection")
        try:
            connection.peer_challenge, answer = self._prover.accept(bytes(request.body))
        except Refused as error:
            raise CloseConnection(str(error)) from None
        return Reply([answer])

    def prove(self, request: Request) -> Answer:
        connection = request.connection
        challenge, connection.peer_challenge = connection.peer_challenge, None
        if challenge is None:
            raise CloseConnection("PeerProof without PeerChallenge")
        if not self._prover.is_proven(challenge, bytes(request.body)):
            reason = f"wrong proof of broker {challenge.connecting}"
            connection.authentication_failed(_MECHANISM, reason)
            raise CloseConnection(reason)
        connection.authenticated(request.client.principal, is_peer=True)
        return NO_REPLY
