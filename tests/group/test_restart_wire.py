"""A broker that stops, or dies, has its groups when it is back."""

import asyncio

import pytest

from tests.broker.simulated import wait_until_up
from tests.group.wire import GROUP, TOPIC, Wire, on_broker


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_members_go_on_and_offsets_are_kept_across_a_restart(how: str) -> None:
    async def scenario(wire: Wire) -> None:
        (member_id,) = await wire.stable(instances=["pod-1"])
        await wire.commit({(TOPIC, 0): (7, "note")}, member_id=member_id, generation=1)
        await wire.commit({(TOPIC, 1): 3}, "simple")
        if how == "stop":
            await wire.broker.stop()
        else:
            getattr(wire.broker, how)()
        await wire.broker.start()
        wire.client = await wait_until_up(wire.broker)
        while await wire.commit({(TOPIC, 0): 0}, "probe") != {(TOPIC, 0): 0}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert (await wire.fetch())[1] == {(TOPIC, 0): (7, -1, "note", 0)}
        assert (await wire.fetch("simple"))[1] == {(TOPIC, 1): (3, -1, "", 0)}
        assert await wire.state_of() == "Stable"
        assert await wire.heartbeat(GROUP, member_id, 1, instance="pod-1") == 0
        synced = await wire.sync(GROUP, member_id, 1, instance="pod-1")
        assert synced.assignment == member_id.encode()
        back = await wire.join(instance="pod-1")
        assert (back.error_code, back.generation_id) == (0, 1)

    on_broker(scenario)
