"""`sasl.jaas.config`, valid and with common mistakes."""

import pytest

from suwi.security.jaas import BadJaas, parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    "text",
    [
        f'{PLAIN} required user_alice="secret" user_bob="hidden";',
        f'  {PLAIN}\n  Required\n  user_alice = "secret"\n  user_bob= hidden\n ;\n',
        'PlainLoginModule required user_alice=secret user_bob="hidden" ;',
    ],
)
def test_users_are_read(text: str) -> None:
    module = parse_jaas(text)
    assert module.name == "PlainLoginModule"
    assert module.users == {"alice": "secret", "bob": "hidden"}


def test_other_options_are_not_users() -> None:
    module = parse_jaas('PlainLoginModule required username="u" password="p" user_a="b";')
    assert module.users == {"a": "b"}
    assert module.options["username"] == "u"


def test_quoted_passwords_may_contain_any_character() -> None:
    module = parse_jaas(r'PlainLoginModule required user_a="; = \" \\ x" user_b="수위";')
    assert module.users == {"a": '; = " \\ x', "b": "수위"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must start with a login module"),
        ("PlainLoginModule", "must start with a login module"),
        ('PlainLoginModule user_a="secret";', "must start with a login module"),
        ('PlainLoginModule required user_a="secret"', 'must end with ";"'),
        ('PlainLoginModule required user_a="secret;', "at character 26"),
        ("PlainLoginModule required secret;", "at character 26"),
        ('PlainLoginModule required user_a="secret" user_a="secret2";', "given twice"),
        ('PlainLoginModule required; ScramLoginModule required p="secret";', "only one"),
    ],
)
def test_mistakes_are_explained_without_the_secret(text: str, message: str) -> None:
    with pytest.raises(BadJaas, match=message) as refused:
        parse_jaas(text)
    assert "secret" not in str(refused.value)


def test_secrets_are_not_in_the_representation() -> None:
    assert "secret" not in repr(parse_jaas('PlainLoginModule required user_a="secret";'))
