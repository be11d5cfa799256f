"""Faults of brokers that share a process: what commands are told."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from suwi.env import local_env
from suwi.local_cluster.cluster import ClusterError
from suwi.local_cluster.served_brokers import ServedBrokers, listening


@pytest.mark.parametrize("error", [OSError("the port is taken"), KeyError("x"), AssertionError()])
def test_who_asks_is_told_why_a_fault_failed(tmp_path: Path, error: Exception) -> None:
    async def act(fault: str, asked: Mapping[str, Any]) -> None:
        raise error

    async def scenario() -> None:
        async with listening(str(tmp_path), local_env(), act):
            with pytest.raises(ClusterError) as told:
                await asyncio.to_thread(ServedBrokers(str(tmp_path)).restart, "1")
            assert str(told.value) == (str(error) or repr(error))

    asyncio.run(scenario())
