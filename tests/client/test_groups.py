"""Deleting groups while their coordinator moves or is lost."""

import pytest
from kio.schema.errors import ErrorCode

from suwi.client.groups import delete_group
from suwi.model.errors import BrokerError
from suwi.sim import Simulation
from suwi.wire.versions import ApiKey
from tests.client.transaction_fakes import LOST, FakeTransactions


def delete(*errors: int) -> list[str]:
    """Delete a group; these are the coordinator's errors. Returns what it was asked."""
    simulation = Simulation(0)

    async def main() -> list[str]:
        fake = FakeTransactions(simulation)
        await fake.start()
        fake.errors[ApiKey.DELETE_GROUPS].extend(errors)
        async with fake.client(retry_timeout_s=5) as cluster:
            await delete_group(cluster, "billing")
        return fake.transcript

    return simulation.run(main())


@pytest.mark.parametrize(
    "first",
    [
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    ],
)
def test_a_group_that_never_existed_is_an_error_also_after_a_retry(first: int) -> None:
    with pytest.raises(BrokerError) as raised:
        delete(first, ErrorCode.group_id_not_found)
    assert raised.value.code is ErrorCode.group_id_not_found


def test_a_group_that_an_attempt_without_a_response_has_deleted_is_deleted() -> None:
    assert len(delete(LOST, ErrorCode.group_id_not_found)) == 2
