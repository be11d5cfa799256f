"""Subscriptions by regular expression: when they are resolved, and what that changes."""

import sys

import pytest
from kio.schema.errors import ErrorCode

from suwi.env.slices import run_to_end as run
from suwi.group import regular_expressions
from suwi.group.consumer_group import GroupState
from suwi.group.regular_expressions import InvalidRegularExpression, compile_regex, resolve
from tests.group.conftest import HAS_RE2
from tests.group.consumer_world import Client, Image, World, settle, topic_id

AB, AC, B = topic_id("ab"), topic_id("ac"), topic_id("b")


def test_without_the_package_an_expression_is_refused_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    response = Client(World(), "m1", None, regex="a.*").beat()
    assert response.error is ErrorCode.invalid_regular_expression
    assert "google-re2" in (response.message or "")


def world() -> World:
    return World(Image().with_topic("ab", 2).with_topic("b", 2))


def test_a_bad_expression_is_refused() -> None:
    client = Client(world(), "m1", None, regex="a(")
    response = client.beat()
    assert response.error is ErrorCode.invalid_regular_expression
    assert "a(" in (response.message or "")


def test_an_expression_matches_whole_names() -> None:
    client = Client(world(), "m1", None, regex="a.|x")
    assert client.beat().assignment == {AB: (0, 1)}
    assert client.epoch == 1


@pytest.mark.skipif(not HAS_RE2, reason="needs google-re2")
def test_an_expression_that_would_stop_python_is_harmless() -> None:
    names = ["a" * 200 + "!"] * 100
    assert run(resolve(["(a+)+$"], names)) == {"(a+)+$": ()}


@pytest.mark.skipif(not HAS_RE2, reason="needs google-re2")
@pytest.mark.parametrize("bomb", ["a" * 32_768, "((a{1000}){1000}){1000}", "(" * 30_000])
def test_an_expression_that_would_take_too_much_memory_is_refused(bomb: str) -> None:
    response = Client(world(), "m1", None, regex=bomb).beat()
    assert response.error is ErrorCode.invalid_regular_expression


def test_names_and_an_expression_add_up() -> None:
    client = Client(world(), "m1", ("b",), regex="a.*")
    assert client.beat().assignment == {AB: (0, 1), B: (0, 1)}


def test_a_new_topic_is_found_within_ten_seconds() -> None:
    w = world()
    client = Client(w, "m1", None, regex="a.*")
    client.beat()
    w.advance(20_000)
    w.change_topics(w.image.with_topic("ac", 1))
    settle(w, [client])
    assert client.owned == {AB: (0, 1), AC: (0,)}
    w.change_topics(w.image.with_topic("ad", 1), tell=False)
    settle(w, [client])
    assert len(client.owned) == 2, "not looked up again so soon"
    w.advance(10_000)
    settle(w, [client])
    assert len(client.owned) == 3
    w.check_replay()


def test_g21_an_expression_that_becomes_empty_raises_the_epoch() -> None:
    w = world()
    client = Client(w, "m1", None, regex="a.*")
    client.beat()
    client.regex, client.must_send_all = "", True
    client.beat()
    assert w.group.epoch == 2
    assert w.group.regexes == {}
    settle(w, [client])
    assert client.owned == {}
    w.check_replay()


def test_g21_an_expression_that_matches_nothing_any_more_raises_the_epoch() -> None:
    w = world()
    client = Client(w, "m1", None, regex="a.*")
    client.beat()
    w.advance(20_000)
    w.change_topics(w.image.without("ab"))
    settle(w, [client])
    assert client.owned == {}
    assert w.group.state is GroupState.STABLE
    assert w.group.regexes["a.*"].topics == ()


def test_an_expression_goes_with_its_last_subscriber() -> None:
    w = world()
    first, second = Client(w, "m1", None, regex="a.*"), Client(w, "m2", None, regex="a.*")
    first.beat()
    settle(w, [first, second])
    assert (first.count, second.count) == (1, 1)
    first.leave()
    assert set(w.group.regexes) == {"a.*"}
    settle(w, [second])
    second.leave()
    assert w.group.regexes == {}
    w.check_replay()


def test_expressions_are_resolved_again_each_refresh_interval_and_after_a_fail_over() -> None:
    w = world()
    client = Client(w, "m1", None, regex="a.*")
    client.beat()
    w.image = w.image.with_topic("ac", 1)
    w.fail_over()
    w.advance(0)
    settle(w, [client])
    assert set(client.owned) == {AB, AC}


def test_many_topics_are_matched_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_expressions, "COST_PER_SLICE", 1)
    w = world()
    for name in ("ac", "ad", "ae"):
        w.image = w.image.with_topic(name, 1)
    client = Client(w, "m1", None, regex="a.*")
    assert client.beat().assignment == {}
    settle(w, [client])
    assert client.count == 5
    w.check_replay()


def test_a_bad_expression_in_the_log_matches_nothing() -> None:
    assert run(resolve(["a(", "a"], ["a"])) == {"a(": (), "a": ("a",)}
    with pytest.raises(InvalidRegularExpression):
        compile_regex("a(")


@pytest.mark.skipif(not HAS_RE2, reason="needs google-re2")
@pytest.mark.parametrize("regex", [r"(\pL\pN){300}", r"(\pL|\pN|\pS|\pM){280}"])
def test_a_short_expression_that_takes_megabytes_is_refused(regex: str) -> None:
    response = Client(world(), "m1", None, regex=regex).beat()
    assert response.error is ErrorCode.invalid_regular_expression


@pytest.mark.skipif(not HAS_RE2, reason="needs google-re2")
def test_an_expression_of_many_names_is_not_too_large() -> None:
    names = [f"topic-name-{number}" for number in range(1_700)]
    regex = "|".join(names)
    assert run(resolve([regex], names)) == {regex: tuple(sorted(names))}


@pytest.mark.skipif(not HAS_RE2, reason="needs google-re2")
def test_an_expression_whose_matches_take_longer_than_a_turn_of_the_loop_is_refused() -> None:
    response = Client(world(), "m1", None, regex="(?:[a-z]?[a-z]?[a-z]?[a-z]?){1000}").beat()
    assert response.error is ErrorCode.invalid_regular_expression
    assert "instructions" in (response.message or "")


@pytest.mark.skipif(not HAS_RE2, reason="needs google-re2")
def test_the_costlier_an_expression_is_the_fewer_names_are_matched_in_one_step() -> None:
    names = ["a" * 240 + f"{number:03}" for number in range(500)]
    assert len(list(resolve(["(?:[a-z]?){1000}"], names))) >= len(names) - 1
    assert len(list(resolve(["a.*"], names))) <= 5


@pytest.mark.skipif(not HAS_RE2, reason="needs google-re2")
def test_few_compiled_expressions_are_kept() -> None:
    for number in range(100):
        compile_regex(f"a{number}")
    assert compile_regex.cache_info().currsize <= 32
