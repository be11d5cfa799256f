"""Which tokens are accepted, and an attacker's tokens one by one."""

import json
from typing import Any

import pytest

from suwi.env import SystemClock
from suwi.security.jwt_validator import (
    BadKeys,
    BadToken,
    JwtRules,
    JwtValidator,
    PublicKey,
    ValidToken,
    parse_keys,
)
from tests.security.issuer import AUDIENCE, NAME, SCOPE, Issuer, SigningKey, attacks, segment

RULES = JwtRules(NAME, ["another", AUDIENCE], [SCOPE])
ISSUER = Issuer()
ATTACKS = attacks(ISSUER)


def validator(issuer: Issuer = ISSUER, rules: JwtRules = RULES) -> JwtValidator:
    keys = parse_keys(issuer.jwks)

    def find(key_id: str | None) -> list[PublicKey]:
        found = [key for key in keys if key_id in (None, key.id)]
        if not found:
            raise BadToken("unknown")
        return found

    return JwtValidator(rules, find, SystemClock())


def accepted(token: str, **settings: Any) -> ValidToken:
    return validator(**settings).validate(token)


def test_a_token_for_this_broker_is_accepted_until_it_ends() -> None:
    user, lifetime_ms = accepted(ISSUER.token("alice", lifetime_s=600))
    assert user == "alice"
    assert 590_000 < lifetime_ms <= 600_000


def test_a_token_may_be_valid_for_very_long() -> None:
    assert accepted(ISSUER.token(exp=10**12)).lifetime_ms > 10**14


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attackers_token_is_refused(name: str) -> None:
    token = ATTACKS[name]
    with pytest.raises(BadToken) as refused:
        accepted(token)
    for part in token.split("."):
        assert len(part) < 8 or part not in str(refused.value)


def test_a_header_of_any_depth_is_refused() -> None:
    """PyJWT reads the header again, a few calls deeper, where the limit is another one."""
    checks, (_, claims, signature) = validator(), ISSUER.token().split(".")
    for depth in range(1, 1500):
        nested = b'{"alg":"RS256","kid":"first","x":' + b"[" * depth + b"]" * depth + b"}"
        with pytest.raises(BadToken):
            checks.validate(f"{segment(nested)}.{claims}.{signature}")


@pytest.mark.parametrize(
    "algorithm",
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"],
)
def test_algorithms_with_public_keys_are_accepted(algorithm: str) -> None:
    issuer = Issuer(SigningKey("one", algorithm))
    assert accepted(issuer.token(), issuer=issuer).user == "alice"


def test_a_key_that_names_its_algorithm_is_used_with_no_other() -> None:
    keys = parse_keys(json.dumps({"keys": [{**ISSUER.keys[0].jwk, "alg": "RS512"}]}).encode())
    checks = JwtValidator(RULES, lambda _: keys, SystemClock())
    assert checks.validate(ISSUER.sign(ISSUER.claims(), algorithm="RS512")).user == "alice"
    with pytest.raises(BadToken, match="algorithm"):
        checks.validate(ISSUER.token())


def test_a_token_without_a_key_id_is_accepted_if_only_one_key_matches() -> None:
    two = Issuer(SigningKey("one"), SigningKey("other"))
    assert accepted(ISSUER.sign(ISSUER.claims(), kid=None)).user == "alice"
    with pytest.raises(BadToken, match="several keys"):
        accepted(two.sign(two.claims(), kid=None), issuer=two)


def test_the_claims_with_user_and_scopes_are_configured() -> None:
    rules = RULES._replace(user_claim="email", scope_claim="scp")
    token = ISSUER.token(email=" alice@example.org ", scp=[SCOPE, 7], aud=["x", AUDIENCE])
    assert accepted(token, rules=rules).user == "alice@example.org"


def test_what_is_not_expected_is_not_checked() -> None:
    token = ISSUER.token(iss=None, aud=None, scope=None)
    assert accepted(token, rules=JwtRules()).user == "alice"


def test_clocks_may_differ_by_the_skew() -> None:
    late = ISSUER.token(lifetime_s=-20)
    assert accepted(late).lifetime_ms == 1
    early = ISSUER.claims()
    early |= {"nbf": early["iat"] + 20, "iat": early["iat"] + 20}
    assert accepted(ISSUER.sign(early)).user == "alice"
    for token in (late, ISSUER.sign(early)):
        with pytest.raises(BadToken):
            accepted(token, rules=RULES._replace(skew_s=10))


def test_a_refusal_names_the_user_only_if_the_signature_is_valid() -> None:
    with pytest.raises(BadToken) as refused:
        accepted(ISSUER.token("bob", aud="other"))
    assert refused.value.user == "bob"
    with pytest.raises(BadToken) as refused:
        accepted(ISSUER.sign(ISSUER.claims("bob"), SigningKey("first")))
    assert refused.value.user == ""


# -- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [1, null, "x", [], {}]}',
        b'{"keys": [{"kty": "oct", "kid": "first", "k": "c2VjcmV0"}]}',
        b'{"keys": [{"kty": "RSA", "n": "!", "e": "AQAB"}]}',
        b'{"keys": [{"kty": "EC", "crv": ["P-256"], "x": 1, "y": 2}]}',
        b'{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}',
        b"[" * 100_000,
    ],
)
def test_a_text_without_a_usable_key_is_refused(text: bytes) -> None:
    with pytest.raises(BadKeys):
        parse_keys(text)


@pytest.mark.parametrize(
    "change",
    [
        {"use": "enc"},
        {"key_ops": ["encrypt"]},
        {"key_ops": 7},
        {"alg": "HS256"},
        {"alg": "none"},
        {"alg": "ES256"},
        {"kid": 7},
    ],
    ids=str,
)
def test_a_key_for_something_else_is_not_used(change: dict[str, Any]) -> None:
    other = SigningKey("other")
    keys = parse_keys(json.dumps({"keys": [{**other.jwk, **change}, ISSUER.keys[0].jwk]}).encode())
    assert [key.id for key in keys] == ["first"]


def test_a_short_key_is_not_used() -> None:
    with pytest.raises(BadKeys):
        parse_keys(Issuer(SigningKey("short", bits=1024)).jwks)


def test_of_a_private_key_only_the_public_part_is_used() -> None:
    from jwt.algorithms import RSAAlgorithm

    own = ISSUER.keys[0]
    private = {**RSAAlgorithm.to_jwk(own.private, as_dict=True), "kid": "first"}
    private.pop("key_ops")
    (key,) = parse_keys(json.dumps({"keys": [private]}).encode())
    assert not hasattr(key.key, "sign")
