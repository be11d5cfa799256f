"""SCRAM against the test vectors of its RFC, against itself, and with invalid messages."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.security.mechanism import Authenticated, Challenge, Refused
from suwi.security.scram import (
    Decoys,
    Lookup,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    make_credential,
)

MECHANISMS = list(ScramMechanism)
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    salted = mechanism.salted_password(password, SALT, 4096)
    return make_credential(mechanism, salted, SALT, 4096)


def users(mechanism: ScramMechanism, **passwords: str) -> Lookup:
    known = {name: credential(mechanism, password) for name, password in passwords.items()}
    decoys = Decoys(b"key")

    def look_up(name: str) -> tuple[ScramCredential, bool]:
        decoy = decoys.credential(mechanism, name, None)
        return known.get(name, decoy), name in known

    return look_up


def server(mechanism: ScramMechanism = ScramMechanism.SHA_256) -> ScramServer:
    return ScramServer(mechanism, users(mechanism, user="pencil"), "server")


def challenge(server: ScramServer, first: str) -> str:
    step = server.respond(first.encode())
    assert isinstance(step, Challenge)
    return step.token.decode()


# -- the vectors of RFC 7677 ----------------------------------------------------------------------

CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = f"n,,n=user,r={CLIENT_NONCE}"
SERVER_FIRST = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_server_sends_the_messages_of_the_rfc() -> None:
    lookup = users(ScramMechanism.SHA_256, user="pencil")
    machine = ScramServer(ScramMechanism.SHA_256, lookup, SERVER_NONCE)
    assert machine.respond(CLIENT_FIRST.encode()) == Challenge(SERVER_FIRST.encode())
    assert machine.respond(CLIENT_FINAL.encode()) == Authenticated("user", SERVER_FINAL.encode())


def test_the_client_sends_the_messages_of_the_rfc() -> None:
    client = ScramClient(ScramMechanism.SHA_256, "user", "pencil", CLIENT_NONCE)
    assert client.first() == CLIENT_FIRST.encode()
    assert client.respond(SERVER_FIRST.encode()) == CLIENT_FINAL.encode()
    assert client.respond(SERVER_FINAL.encode()) is None


# -- both sides -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["alice", "a,b=c", "=2C", "수위", "a b"])
def test_both_sides_agree(mechanism: ScramMechanism, name: str) -> None:
    machine = ScramServer(mechanism, users(mechanism, **{name: "päss,=wörd"}), "server")
    client = ScramClient(mechanism, name, "päss,=wörd", "client")
    first = machine.respond(client.first())
    final = client.respond(first.token)
    assert final is not None
    done = machine.respond(final)
    assert isinstance(done, Authenticated)
    assert done.user == name
    assert client.respond(done.token) is None


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [("user", "wrong"), ("nobody", "pencil")])
def test_wrong_passwords_and_unknown_users_get_the_same_responses(
    mechanism: ScramMechanism, name: str, password: str
) -> None:
    machine = server(mechanism)
    client = ScramClient(mechanism, name, password, "client")
    first = machine.respond(client.first())
    assert isinstance(first, Challenge)
    assert first.token.startswith(b"r=clientserver,s=")
    assert first.token.endswith(b",i=4096")
    final = client.respond(first.token)
    assert final is not None
    with pytest.raises(Refused, match=f"invalid credentials with SASL mechanism {client.name}$"):
        machine.respond(final)


def test_an_unknown_user_has_the_same_salt_each_time_and_on_every_broker() -> None:
    mechanism = ScramMechanism.SHA_256
    one, again = (Decoys(b"key").credential(mechanism, "bob", None) for _ in range(2))
    other = Decoys(b"key").credential(mechanism, "eve", None)
    assert one == again
    assert one.salt != other.salt


def test_an_unknown_user_looks_like_the_known_ones() -> None:
    mechanism = ScramMechanism.SHA_512
    like = ScramCredential(b"s" * 64, 16384, b"", b"")
    decoy = Decoys(b"key").credential(mechanism, "bob", like)
    assert (len(decoy.salt), decoy.iterations) == (64, 16384)


# -- invalid messages -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [
        "",
        "n",
        "n,,",
        "n,,n=user",
        "n,,n=user,r=",
        "n,,n=,r=abc",
        "n,,r=abc,n=user",
        "n,,m=ext,n=user,r=abc",
        "n,,n=us=er,r=abc",
        "n,x,n=user,r=abc",
        "\xff",
    ],
)
def test_a_malformed_first_message_is_refused(first: str) -> None:
    with pytest.raises(Refused, match="not a SCRAM message"):
        server().respond(first.encode("latin-1"))


@pytest.mark.parametrize("flag", ["p=tls-unique", "p=tls-server-end-point", "x"])
def test_channel_binding_is_refused(flag: str) -> None:
    with pytest.raises(Refused, match="channel binding"):
        server().respond(f"{flag},,n=user,r=abc".encode())


def test_another_users_name_as_authorization_id_is_refused() -> None:
    with pytest.raises(Refused, match="authorization id"):
        server().respond(b"n,a=admin,n=user,r=abc")
    assert challenge(server(), "n,a=user,n=user,r=abc")


def proof_for(machine: ScramServer, first: str, final: str) -> str:
    """A final message with a matching proof, even if another part is wrong."""
    mechanism = ScramMechanism.SHA_256
    server_first = challenge(machine, first)
    bare = first.split(",", 2)[2]
    salted = mechanism.salted_password("pencil", SALT, 4096)
    client_key = mechanism.hmac(salted, b"Client Key")
    message = f"{bare},{server_first},{final}".encode()
    signature = mechanism.hmac(mechanism.hash(client_key), message)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{final},p={base64.b64encode(proof).decode()}"


def test_a_fitting_proof_is_accepted() -> None:
    machine = server()
    final = proof_for(machine, "n,,n=user,r=abc", "c=biws,r=abcserver")
    assert isinstance(machine.respond(final.encode()), Authenticated)


@pytest.mark.parametrize("nonce", ["abc", "server", "abcserverx", "xabcserver", ""])
def test_another_nonce_is_refused_even_with_a_fitting_proof(nonce: str) -> None:
    machine = server()
    final = proof_for(machine, "n,,n=user,r=abc", f"c=biws,r={nonce}")
    with pytest.raises(Refused, match="invalid credentials"):
        machine.respond(final.encode())


def test_a_modified_channel_binding_flag_is_detected() -> None:
    machine = server()
    # The client sent "y" (supports channel binding), an attacker changed it to "n".
    final = proof_for(machine, "n,,n=user,r=abc", "c=eSws,r=abcserver")
    with pytest.raises(Refused, match="invalid credentials"):
        machine.respond(final.encode())


@pytest.mark.parametrize(
    "final",
    ["", "c=biws", "c=biws,r=abcserver", "c=biws,r=abcserver,p=", "c=!,r=x,p=AA==", "p=AA=="],
)
def test_a_malformed_final_message_is_refused(final: str) -> None:
    machine = server()
    challenge(machine, "n,,n=user,r=abc")
    with pytest.raises(Refused):
        machine.respond(final.encode())


@given(st.lists(st.binary(max_size=80) | st.text("nycrpa=,bi\0é", max_size=40).map(str.encode)))
def test_whatever_is_sent_ends_in_a_challenge_or_a_refusal(tokens: list[bytes]) -> None:
    machine = server()
    for token in tokens:
        try:
            assert isinstance(machine.respond(token), Challenge)
        except Refused:
            return


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("r=server,s=AAAA,i=4096", "does not start with the client's"),
        ("r=client,s=AAAA,i=4096", "does not start with the client's"),
        ("r=clientserver,s=AAAA,i=1", "1 SCRAM iterations"),
        ("r=clientserver,s=AAAA,i=2000000000", "2000000000 SCRAM iterations"),
        ("r=clientserver,s=!,i=4096", "malformed SCRAM message"),
        ("e=other-error", "malformed SCRAM message"),
    ],
)
def test_the_client_refuses_invalid_broker_messages(first: str, message: str) -> None:
    client = ScramClient(ScramMechanism.SHA_256, "user", "pencil", "client")
    client.first()
    with pytest.raises(Refused, match=message):
        client.respond(first.encode())


def test_the_client_notices_a_broker_that_does_not_know_the_password() -> None:
    client = ScramClient(ScramMechanism.SHA_256, "user", "pencil", CLIENT_NONCE)
    client.respond(SERVER_FIRST.encode())
    with pytest.raises(Refused, match="does not know"):
        client.respond(b"v=" + base64.b64encode(bytes(32)))


def test_secrets_are_not_in_the_representation() -> None:
    shown = repr(credential(ScramMechanism.SHA_256, "pencil"))
    assert shown == "ScramCredential(iterations=4096)"
