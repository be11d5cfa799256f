"""A DeleteRecords that is not woken when it could be answered is found."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from simulation.seeded_run import Options, run_seed
from suwi.handlers import delete_records
from suwi.sim.checkers import Broken

OPTIONS = Options(kinds=["reset"], trouble_s=4.0, force={"deletes": True, "copiers": 0})


async def sleeps(_partition: Any, _offset: int, until_s: float) -> None:
    await asyncio.sleep(until_s - asyncio.get_running_loop().time())


def test_a_request_that_sleeps_on_is_found() -> None:
    with (
        patch.object(delete_records, "_wait_for_replicas", sleeps),
        pytest.raises(Broken, match="is not answered"),
    ):
        run_seed(1, OPTIONS)


def test_one_that_is_woken_is_not() -> None:
    run_seed(1, OPTIONS)
