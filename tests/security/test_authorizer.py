"""Who may do what: the decision, against a naive reference and case by case."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check,
    decode_rule,
    encode_rule,
)
from suwi.security.authorizer import AclIndex, Authorizer, GrantedTopics, _Prefixes
from suwi.security.principal import Principal, parse_principal, user

ALICE, BOB = user("alice"), user("bob")
HOST = "10.1.2.3"


def rule(
    text: str,
    operation: Operation = Operation.READ,
    who: str = "User:alice",
    *,
    host: str = "*",
    deny: bool = False,
    kind: ResourceType = ResourceType.TOPIC,
) -> AclBinding:
    """`orders` is literal, `orders-*` prefixed, `*` all."""
    is_prefix = text.endswith("*") and text != "*"
    return AclBinding(
        kind,
        PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
        text.removesuffix("*") if is_prefix else text,
        who,
        host,
        operation,
        Permission.DENY if deny else Permission.ALLOW,
    )


def authorizer(*rules: AclBinding, **how: bool) -> Authorizer:
    return Authorizer(AclIndex().replaced((), rules), ["User:root"], **how)


def may(
    asked: Authorizer,
    operation: Operation = Operation.READ,
    name: str | None = "orders",
    who: Principal = ALICE,
    host: str = HOST,
) -> bool:
    return asked.may(who, host, operation, ResourceType.TOPIC, name)


def test_nothing_is_allowed_without_a_rule() -> None:
    assert not may(authorizer())


def test_a_super_user_may_do_everything_even_what_is_denied() -> None:
    asked = authorizer(rule("*", Operation.ALL, "User:*", deny=True))
    assert may(asked, who=user("root"))
    assert not may(asked)


@pytest.mark.parametrize("text", ["orders", "order*", "orders*", "o*", "*"])
def test_literal_prefixed_and_wildcard_patterns_apply(text: str) -> None:
    assert may(authorizer(rule(text)))
    assert not may(authorizer(rule(text)), who=BOB)


@pytest.mark.parametrize("text", ["order", "orders-eu", "orders-*", "x*"])
def test_other_patterns_do_not_apply(text: str) -> None:
    assert not may(authorizer(rule(text)))


@pytest.mark.parametrize("denied", ["orders", "ord*", "*"])
def test_a_denial_wins_over_everything_that_allows(denied: str) -> None:
    allowed = rule("orders"), rule("o*"), rule("*")
    assert not may(authorizer(*allowed, rule(denied, who="User:*", deny=True)))


@pytest.mark.parametrize(
    "given_right", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER]
)
def test_describe_is_implied_by_an_allowance_but_not_refused_by_a_denial(
    given_right: Operation,
) -> None:
    assert may(authorizer(rule("orders", given_right)), Operation.DESCRIBE)
    both = rule("orders", Operation.DESCRIBE), rule("orders", given_right, deny=True)
    assert may(authorizer(*both), Operation.DESCRIBE)


def test_describe_configs_is_implied_by_alter_configs_alone() -> None:
    assert may(authorizer(rule("orders", Operation.ALTER_CONFIGS)), Operation.DESCRIBE_CONFIGS)
    assert not may(authorizer(rule("orders", Operation.ALTER)), Operation.DESCRIBE_CONFIGS)
    assert not may(authorizer(rule("orders", Operation.CREATE)), Operation.DESCRIBE)


@pytest.mark.parametrize(
    ("host", "client", "is_allowed"),
    [
        ("*", HOST, True),
        (HOST, HOST, True),
        ("10.1.2.4", HOST, False),
        ("10.0.0.0/8", HOST, True),
        ("11.0.0.0/8", HOST, False),
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("fd00::/8", "fd12::1", True),
        ("fd00::/8", HOST, False),
        (f"::ffff:{HOST}", HOST, True),
        ("::ffff:10.0.0.0/104", HOST, True),
        ("::ffff:11.0.0.0/104", HOST, False),
        ("::/0", HOST, False),
        ("db1.example", HOST, False),
        ("10.0.0.0/8", "", False),
    ],
)
def test_a_rule_is_for_a_host_or_a_range(host: str, client: str, is_allowed: bool) -> None:
    assert may(authorizer(rule("orders", host=host)), host=client) is is_allowed


def test_everyone_may_use_what_no_rule_is_about_if_the_setting_says_so() -> None:
    asked = authorizer(rule("orders", who="User:bob"), allows_without_rules=True)
    assert may(asked, name="payments")
    assert not may(asked, name="orders")
    assert not may(authorizer(rule("ord*", who="User:bob"), allows_without_rules=True))


@pytest.mark.parametrize(
    ("rules", "is_allowed"),
    [
        ([], False),
        ([rule("orders", Operation.WRITE)], True),
        ([rule("orders-*", Operation.ALL)], True),
        ([rule("orders", Operation.READ)], False),
        ([rule("orders", Operation.WRITE), rule("orders", Operation.WRITE, deny=True)], False),
        ([rule("orders", Operation.WRITE), rule("ord*", Operation.WRITE, deny=True)], False),
        ([rule("ord*", Operation.WRITE), rule("orders", Operation.WRITE, deny=True)], True),
        ([rule("ord*", Operation.WRITE), rule("ord*", Operation.WRITE, deny=True)], False),
        ([rule("ord*", Operation.WRITE), rule("*", Operation.ALL, deny=True)], False),
        ([rule("*", Operation.WRITE), rule("ord*", Operation.WRITE, deny=True)], True),
        ([rule("orders", Operation.WRITE, host="1.2.3.4")], False),
    ],
)
def test_any_topic_is_found_unless_a_denial_dominates(
    rules: list[AclBinding], is_allowed: bool
) -> None:
    assert may(authorizer(*rules), Operation.WRITE, None) is is_allowed


def test_a_decision_is_forgotten_when_the_rules_change() -> None:
    asked = authorizer()
    assert not may(asked)
    asked.apply(asked.acls.replaced((), [rule("orders")]))
    assert may(asked)
    asked.apply(asked.acls.replaced([rule("orders")], ()))
    assert not may(asked)


def test_a_grant_that_a_connection_remembers_is_forgotten_when_the_rules_change() -> None:
    held = GrantedTopics()
    for acls in (AclIndex(), AclIndex().replaced((), [rule("orders")])):
        assert not held.have("orders", acls)
        held.add("orders", acls)
        assert held.have("orders", acls)
    held.add("payments", AclIndex())
    assert not held.have("orders", acls)


def test_the_grants_that_a_connection_remembers_are_bounded() -> None:
    held, acls = GrantedTopics(), AclIndex()
    for number in range(1_000):
        held.add(f"a{number}", acls)
        assert held.have(f"a{number}", acls)
    assert sum(held.have(f"a{number}", acls) for number in range(1_000)) <= 100


def test_what_is_remembered_is_bounded() -> None:
    asked = authorizer(rule("a*"))
    for number in range(25_000):
        may(asked, name=f"a{number}")
    assert len(asked._decided) <= 20_000


def test_a_decision_is_remembered_for_all_hosts_unless_a_rule_names_one() -> None:
    asked = authorizer(rule("orders"))
    for number in range(100):
        assert may(asked, host=f"10.0.0.{number}")
    assert len(asked._decided) == 1
    named = rule("orders", host="10.0.0.1", deny=True)
    asked.apply(asked.acls.replaced((), [named, named]))
    assert [may(asked, host=f"10.0.0.{number}") for number in range(3)] == [True, False, True]
    asked.apply(asked.acls.replaced([named, rule("never", host="10.0.0.1")], ()))
    assert not asked.acls.names_hosts
    assert may(asked, host="10.0.0.1")


def test_a_principal_with_an_empty_name_is_read_back() -> None:
    """It is that of a certificate without a subject; the controller gets it in an envelope."""
    for principal in (user(""), user("a:b"), user("CN=a,O=b")):
        assert parse_principal(str(principal)) == principal


def test_authorized_operations_are_a_bit_field_of_those_that_exist_for_the_resource() -> None:
    asked = authorizer(rule("orders", Operation.READ), rule("orders", Operation.CLUSTER_ACTION))
    found = asked.operations(ALICE, HOST, ResourceType.TOPIC, "orders")
    assert found == 1 << Operation.READ | 1 << Operation.DESCRIBE


def test_the_deciding_rule_is_told() -> None:
    denied = rule("orders", deny=True)
    asked = authorizer(rule("*"), denied)
    decision = asked.decide(ALICE, HOST, Operation.READ, ResourceType.TOPIC, "orders")
    assert decision == (False, denied)
    assert str(denied) == "deny User:alice read on topic orders from *"


def test_a_rule_for_the_principal_is_told_before_one_for_everybody() -> None:
    own = rule("ord*")
    asked = authorizer(rule("orders", Operation.ALL, "User:*"), own, rule("*", who="User:*"))
    decision = asked.decide(ALICE, HOST, Operation.READ, ResourceType.TOPIC, "orders")
    assert decision == (True, own)


# -- against the naive reference -------------------------------------------------------------------

NAMES = st.sampled_from(["a", "ab", "abc", "b", "*", "ba"])
PRINCIPALS = st.sampled_from(["User:alice", "User:bob", "User:*", "Group:alice"])
KINDS = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP])
OPERATIONS = st.sampled_from([o for o in Operation if o not in (Operation.UNKNOWN, Operation.ANY)])
RULES = st.lists(
    st.builds(
        AclBinding,
        KINDS,
        st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
        NAMES,
        PRINCIPALS,
        st.sampled_from(["*", HOST, "10.9.9.9", "10.0.0.0/8"]),
        OPERATIONS,
        st.sampled_from([Permission.ALLOW, Permission.DENY]),
    ),
    max_size=12,
)


def naive(
    rules: Iterable[AclBinding], who: str, operation: Operation, kind: ResourceType, name: str
) -> bool | None:
    """None: no rule is about the resource."""
    implied = {
        Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }
    about = [
        each
        for each in rules
        if each.resource_type is kind
        and (
            name.startswith(each.name)
            if each.pattern_type is PatternType.PREFIXED
            else each.name in (name, "*")
        )
    ]
    if not about:
        return None
    matching = [
        each
        for each in about
        if each.principal in (who, "User:*")
        and each.host in ("*", HOST, "10.0.0.0/8")
        and (
            each.operation in (operation, Operation.ALL)
            or (
                each.permission is Permission.ALLOW and each.operation in implied.get(operation, ())
            )
        )
    ]
    permissions = {each.permission for each in matching}
    return Permission.ALLOW in permissions and Permission.DENY not in permissions


@given(RULES, RULES, PRINCIPALS, OPERATIONS, KINDS, NAMES, st.booleans())
def test_a_decision_is_that_of_the_reference_however_the_rules_came(
    rules: list[AclBinding],
    gone: list[AclBinding],
    who: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    default: bool,
) -> None:
    half = len(rules) // 2
    index = AclIndex().replaced((), [*gone, *rules[:half]])
    index = index.replaced([each for each in gone if each not in rules], rules[half:])
    assert set(index) == set(rules)
    asked = Authorizer(index, allows_without_rules=default)
    expected = naive(rules, who, operation, kind, name)
    found = asked.may(parse_principal(who), HOST, operation, kind, name)
    assert found is (default if expected is None else expected)


@given(RULES, PRINCIPALS, st.sampled_from([Operation.WRITE, Operation.READ]))
def test_if_any_resource_is_refused_then_each_is(
    rules: list[AclBinding], who: str, operation: Operation
) -> None:
    """Kafka's check of prefixes is generous, never too strict, for rights that nothing implies."""
    asked = authorizer(*rules)
    if not asked.may(parse_principal(who), HOST, operation, ResourceType.TOPIC, None):
        for name in ("a", "ab", "abc", "b", "ba"):
            assert not asked.may(parse_principal(who), HOST, operation, ResourceType.TOPIC, name)


@given(st.sets(st.text("ab", min_size=1, max_size=6)), st.text("ab", max_size=8))
def test_all_prefixes_of_a_name_are_found(prefixes: set[str], name: str) -> None:
    found = list(_Prefixes(prefixes).of(name))
    assert sorted(found) == sorted(each for each in prefixes if name.startswith(each))


def test_a_decision_looks_at_the_prefixes_that_apply_and_not_at_all_lengths() -> None:
    lengths = [rule("x" * length + "y*") for length in range(1, 2000)]
    index = AclIndex().replaced((), [*lengths, rule("xx*")])
    name = "x" * 4000
    assert list(index._prefixes[ResourceType.TOPIC].of(name)) == ["xx"]


@given(RULES)
def test_a_rule_is_stored_and_read_back(rules: list[AclBinding]) -> None:
    assert [decode_rule(encode_rule(each)) for each in rules] == rules


# -- rules and filters -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken",
    [
        rule("orders")._replace(resource_type=ResourceType.ANY),
        rule("orders")._replace(pattern_type=PatternType.MATCH),
        rule("orders")._replace(operation=Operation.ANY),
        rule("orders")._replace(permission=Permission.UNKNOWN),
        rule(""),
        rule("orders", who="alice"),
        rule("orders", host="10.0.0.0/99"),
        rule("orders", host="10.1.2.3/8"),
        rule("other", kind=ResourceType.CLUSTER),
        rule("x" * 5000),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(broken: AclBinding) -> None:
    with pytest.raises(ValueError, match=r"."):
        check(broken)


def test_rules_on_every_type_can_be_stored() -> None:
    for kind in ResourceType:
        if kind > ResourceType.ANY:
            name = CLUSTER_NAME if kind is ResourceType.CLUSTER else "any"
            check(rule(name, kind=kind))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (AclFilter(), {"orders", "ord*", "*", "pay"}),
        (AclFilter(name="orders"), {"orders"}),
        (AclFilter(pattern_type=PatternType.MATCH, name="orders"), {"orders", "ord*", "*"}),
        (AclFilter(pattern_type=PatternType.PREFIXED), {"ord*"}),
        (AclFilter(pattern_type=PatternType.PREFIXED, name="ord"), {"ord*"}),
        (AclFilter(pattern_type=PatternType.LITERAL, name="*"), {"*"}),
        (AclFilter(resource_type=ResourceType.GROUP), set()),
        (AclFilter(principal="User:bob"), {"pay"}),
        (AclFilter(operation=Operation.READ), {"orders", "ord*", "*"}),
        (AclFilter(permission=Permission.DENY), set()),
        (AclFilter(host="1.2.3.4"), set()),
    ],
)
def test_a_filter_selects_as_kafkas(wanted: AclFilter, expected: set[str]) -> None:
    rules = {
        **{text: rule(text) for text in ("orders", "ord*", "*")},
        "pay": rule("pay", Operation.WRITE, "User:bob"),
    }
    assert {text for text, each in rules.items() if wanted.matches(each)} == expected
