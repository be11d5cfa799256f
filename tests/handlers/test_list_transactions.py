"""ListTransactions by a pattern: what a match may cost decides how many ids are in a slice."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.group import regular_expressions
from suwi.handlers.list_transactions import list_transactions
from suwi.sim.clock import ManualClock
from suwi.transaction.transaction_records import TransactionState
from suwi.wire.versions import ApiKey
from tests.handlers.requests import request, response_to

pytest.importorskip("re2")

COSTLY = "(?:[a-z0-9]?){1000}"


def runtime_of(ids: list[str]) -> Any:
    metadata = SimpleNamespace(state=TransactionState.EMPTY, producer_id=1, start_ms=0)
    machine = SimpleNamespace(transactions=dict.fromkeys(ids, metadata))
    shards = [SimpleNamespace(machine=machine)]
    return SimpleNamespace(is_loading=False, active=lambda: shards)


async def answer_to(ids: list[str], pattern: str) -> Any:
    fields = {
        "state_filters": [], "producer_id_filters": [], "duration_filter": -1,
        "transactional_id_pattern": pattern,
    }  # fmt: skip
    asked = request(ApiKey.LIST_TRANSACTIONS, 2, fields)
    return await response_to(asked, list_transactions(runtime_of(ids), ManualClock(), asked))


def test_ids_are_matched_in_slices_that_the_cost_of_the_pattern_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_turn: Counter[int] = Counter()
    turn = 0
    matches = regular_expressions.Regex.matches

    def counted(regex: regular_expressions.Regex, name: str) -> bool:
        by_turn[turn] += 1
        return matches(regex, name)

    monkeypatch.setattr(regular_expressions.Regex, "matches", counted)

    async def scenario() -> None:
        def tick() -> None:
            nonlocal turn, ticking
            turn += 1
            ticking = asyncio.get_running_loop().call_soon(tick)

        ticking = asyncio.get_running_loop().call_soon(tick)
        ids = ["a" * 300 + str(number) for number in range(20)]
        answer = await answer_to(ids, COSTLY)
        ticking.cancel()
        assert [each.transactional_id for each in answer.transaction_states] == ids

    asyncio.run(scenario())
    assert by_turn.total() == 20
    assert max(by_turn.values()) == 1


def test_an_id_that_is_too_long_for_the_pattern_is_not_matched_in_one_piece() -> None:
    answer = asyncio.run(answer_to(["a", "a" * 10_000], COSTLY))
    assert answer.error_code == ErrorCode.invalid_regular_expression
    assert asyncio.run(answer_to(["a", "a" * 10_000], "a*")).error_code == ErrorCode.none
