"""PeerChallenge v0 and PeerProof v0, Suwi's own and never advertised: a broker proves that it is
one, on a listener between brokers that has no SASL.

The bodies are those of `security.peer_proof`. A proof gets no answer, so that the next request can
follow it at once; a wrong one closes the connection.
"""

from suwi.net.answers import NO_REPLY, Answer, CloseConnection, Reply
from suwi.net.dispatch import Request
from suwi.security.mechanism import Refused
from suwi.security.peer_proof import PeerProver

_MECHANISM = "PEER"


class PeerHandshake:
    def __init__(self, prover: PeerProver, listener: str | None) -> None:
        """`listener`: where brokers prove themselves; None: nowhere."""
        self._prover = prover
        self._listener = listener

    def challenge(self, request: Request) -> Answer:
        connection = request.connection
        if request.listener != self._listener:
            raise CloseConnection("no listener where brokers prove that they are brokers")
        if connection.peer_challenge is not None or request.client.is_peer:
            raise CloseConnection("a broker introduces itself twice")
        try:
            connection.peer_challenge, answer = self._prover.accept(bytes(request.body))
        except Refused as error:
            raise CloseConnection(str(error)) from None
        return Reply([answer])

    def prove(self, request: Request) -> Answer:
        connection = request.connection
        challenge, connection.peer_challenge = connection.peer_challenge, None
        if challenge is None:
            raise CloseConnection("a proof that nobody has asked for")
        if not self._prover.is_proven(challenge, bytes(request.body)):
            reason = f"not proven to be broker {challenge.connecting}"
            connection.authentication_failed(_MECHANISM, reason)
            raise CloseConnection(reason)
        connection.authenticated(request.principal, is_peer=True)
        return NO_REPLY
