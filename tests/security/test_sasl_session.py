"""The SASL state of a connection, without a connection."""

import tracemalloc

import pytest

from suwi.model.errors import IllegalSaslState, UnsupportedSaslMechanism
from suwi.security.mechanism import Authenticated, Refused
from suwi.security.plain import PlainClient, PlainServer, PlainUsers
from suwi.security.principal import user
from suwi.security.sasl_session import MechanismRules, SaslRules, SaslSession

USERS = PlainUsers({"alice": "secret", "bob": "hidden"}, b"key")
ALICE = b"\0alice\0secret"
BOB = b"\0bob\0hidden"


def session(reauthenticate_ms: int = 0) -> SaslSession:
    plain = MechanismRules(lambda: PlainServer(USERS), reauthenticate_ms)
    return SaslSession(SaslRules({"PLAIN": plain, "OTHER": plain}))


def authenticated(reauthenticate_ms: int = 0) -> SaslSession:
    made = session(reauthenticate_ms)
    made.choose("PLAIN", 100.0, bare_tokens=False)
    made.respond(ALICE, 100.0)
    return made


# -- PLAIN ----------------------------------------------------------------------------------------


def test_a_user_with_its_password_is_authenticated() -> None:
    token = PlainClient("alice", "secret").first()
    assert PlainServer(USERS).respond(token) == Authenticated("alice", b"")


@pytest.mark.parametrize(
    "token",
    [
        b"\0alice\0wrong",
        b"\0alice\0secre",
        b"\0alice\0secrets",
        b"\0alice\0",
        b"\0\0secret",
        b"\0nobody\0secret",
        b"\0bob\0secret",
        b"bob\0alice\0secret",
        b"alice\0secret",
        b"\0alice\0secret\0more",
        b"",
        b"\xff\0\xff\0\xff",
    ],
)
def test_other_credentials_are_refused(token: bytes) -> None:
    with pytest.raises(Refused) as refused:
        PlainServer(USERS).respond(token)
    assert "alice" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_token_of_many_parts_is_not_taken_apart() -> None:
    """Each of them would take many times the memory of its byte."""
    token = bytes(1_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(Refused):
            PlainServer(USERS).respond(token)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(token)
    finally:
        tracemalloc.stop()


def test_a_wrong_password_and_an_unknown_user_get_the_same_error() -> None:
    texts = set()
    for token in (b"\0alice\0wrong", b"\0nobody\0secret"):
        with pytest.raises(Refused) as refused:
            PlainServer(USERS).respond(token)
        texts.add(str(refused.value))
    assert texts == {"Authentication failed: Invalid username or password"}


# -- sessions -------------------------------------------------------------------------------------


def test_a_new_session_is_not_authenticated() -> None:
    made = session()
    assert made.principal is None
    assert made.open_until_s < 0


def test_an_authentication_does_not_expire_by_default() -> None:
    made = authenticated()
    assert made.principal == user("alice")
    assert made.open_until_s == float("inf")
    assert made.lifetime_ms == 0


def test_an_authentication_expires_as_configured() -> None:
    made = authenticated(reauthenticate_ms=60_000)
    assert made.open_until_s == 160.0
    assert made.lifetime_ms == 60_000


def test_a_token_before_the_handshake_is_illegal() -> None:
    with pytest.raises(IllegalSaslState):
        session().respond(ALICE, 0.0)


def test_a_mechanism_that_is_not_enabled_is_refused() -> None:
    for name in ("GSSAPI", "plain", ""):
        with pytest.raises(UnsupportedSaslMechanism):
            session().choose(name, 0.0, bare_tokens=False)


def test_a_second_handshake_before_the_first_has_ended_is_illegal() -> None:
    made = session()
    made.choose("PLAIN", 0.0, bare_tokens=False)
    with pytest.raises(IllegalSaslState):
        made.choose("PLAIN", 0.0, bare_tokens=False)


def test_a_failed_authentication_sets_no_principal() -> None:
    made = session()
    made.choose("PLAIN", 0.0, bare_tokens=False)
    with pytest.raises(Refused):
        made.respond(BOB + b"x", 0.0)
    assert made.principal is None
    assert made.open_until_s < 0


def test_there_is_no_second_attempt_after_a_failed_authentication() -> None:
    made = session()
    made.choose("PLAIN", 0.0, bare_tokens=False)
    with pytest.raises(Refused):
        made.respond(b"\0alice\0guess", 0.0)
    assert made.is_refused
    with pytest.raises(IllegalSaslState):
        made.respond(ALICE, 0.0)
    with pytest.raises(IllegalSaslState):
        made.choose("PLAIN", 0.0, bare_tokens=False)


def test_only_handshake_v0_is_followed_by_bare_tokens() -> None:
    for bare in (True, False):
        made = session()
        made.choose("PLAIN", 0.0, bare_tokens=bare)
        assert made.expects_bare_token is bare
        made.respond(ALICE, 0.0)
        assert not made.expects_bare_token


def test_reauthentication_is_allowed() -> None:
    made = authenticated(reauthenticate_ms=60_000)
    made.choose("PLAIN", 150.0, bare_tokens=False)
    assert made.open_until_s == 160.0
    made.respond(ALICE, 151.0)
    assert made.open_until_s == 211.0


@pytest.mark.parametrize(
    ("reauthenticate_ms", "now_s", "bare_tokens"),
    [(0, 150.0, False), (60_000, 100.5, False), (60_000, 150.0, True)],
    ids=["not configured", "too soon", "with bare tokens"],
)
def test_reauthentication_is_refused(
    reauthenticate_ms: int, now_s: float, bare_tokens: bool
) -> None:
    made = authenticated(reauthenticate_ms)
    with pytest.raises(IllegalSaslState):
        made.choose("PLAIN", now_s, bare_tokens=bare_tokens)
    assert made.principal == user("alice")


def test_reauthentication_cannot_change_the_user() -> None:
    made = authenticated(reauthenticate_ms=60_000)
    made.choose("PLAIN", 150.0, bare_tokens=False)
    with pytest.raises(Refused, match="cannot change its user"):
        made.respond(BOB, 150.0)
    assert made.principal == user("alice")
    assert made.open_until_s < 0


def test_reauthentication_cannot_change_the_mechanism() -> None:
    made = authenticated(reauthenticate_ms=60_000)
    with pytest.raises(UnsupportedSaslMechanism, match="cannot change its mechanism"):
        made.choose("OTHER", 150.0, bare_tokens=False)
