"""What the command line and the console ask of a cluster, as data, in simulation."""

import pytest

from suwi.admin.cluster_checks import check_cluster
from suwi.admin.cluster_health import HealthCriteria, problems, read_health
from suwi.admin.explainer import What, explain_offsets
from suwi.admin.failure import Failure
from suwi.admin.group_descriptions import Scope, describe_groups
from suwi.admin.hanging_transactions import find_hanging_transactions
from suwi.admin.offset_reset import Goal, Reset, apply_reset, plan_reset
from suwi.admin.reassignment import drain
from suwi.admin.topic_descriptions import describe_topics, describe_topics_replicas
from suwi.client.connection import PeerConnection
from suwi.client.replicas import describe_replicas
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.ids import NodeId
from suwi.sim import Simulation
from suwi.sim.clock import ManualClock
from suwi.sim.cluster import SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.simulated import produce
from tests.broker.test_simulated_cluster import create

CRITERIA = HealthCriteria(lag_min=None, timeout_s=5)


def test_a_cluster_is_described_judged_and_changed_without_printing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    simulation = Simulation(1)

    async def main() -> None:
        cluster = SimCluster(simulation, brokers=4)
        await cluster.start()
        client = cluster.client("admin")
        await create(client, assignments=[[1, 2, 3]])
        connection = await PeerConnection.open("b1", 9092)
        for _ in range(5):
            assert (await produce(connection, "orders", [b"x"])).error_code == 0

        (topic,) = await describe_topics(client, [])
        assert [(p.partition, p.start_offset, p.end_offset) for p in topic.partitions] == [
            (0, 0, 5)
        ]
        (partition,) = await describe_topics_replicas(client, ["orders"])
        assert [replica["role"] for replica in partition.replicas] == ["leader"] + ["follower"] * 2
        explained = await explain_offsets(client, "orders", 0, [4, 5])
        assert [each["what"] for each in explained] == [What.RECORD, What.NEVER_WRITTEN]

        scopes, goal = [Scope("orders", None)], Reset(Goal.OFFSET, 9)
        plan = await plan_reset(client, "billing", scopes, goal)
        assert (plan.exists, [each.new_offset for each in plan.changes]) == (False, [5])
        assert plan.notes == ["orders-0 has offsets 0 to 5: 5 is taken instead of 9"]
        assert (await describe_groups(client, [], 0)).groups == []
        await apply_reset(client, await plan_reset(client, "billing", scopes, Reset(Goal.EARLIEST)))
        (group,) = (await describe_groups(client, ["billing"], 0)).groups
        assert (group.group, group.lag, group.members) == ("billing", 5, [])
        with pytest.raises(Failure, match="did you mean 'billing'"):
            await describe_groups(client, ["biling"], 0)

        report = await find_hanging_transactions(client, None, None, silent_ms=0, now_ms=0)
        assert (report.found, report.unread, report.silent) == ([], {}, {})
        told: list[str] = []
        assert await drain(client, 3, told.append) >= 1
        assert told[0].startswith("moving ")
        assert all(
            3 not in p.replicas for t in await describe_topics(client, []) for p in t.partitions
        )

        assert problems(await read_health(client, ManualClock(0), CRITERIA), CRITERIA) == []
        cluster[4].kill()
        status = await read_health(client, ManualClock(0), CRITERIA)
        assert any(text.startswith("broker 4 is") for text in problems(status, CRITERIA))
        found = await check_cluster(client, ManualClock(0), CRITERIA)
        assert any(f.level == "error" and "broker 4 is" in f.problem for f in found)
        connection.abort()
        await client.close()

    simulation.run(main())
    assert capfd.readouterr().out == ""


class _HalfClosed(SimCluster):
    """One broker has been restarted with another setting."""

    def config_of(self, node_id: NodeId) -> BrokerConfig:
        config = super().config_of(node_id)
        own = {"allow.everyone.if.no.acl.found": "true"} if node_id == 2 else {}
        return parse_broker_config({**config.given, **own}).config


def test_brokers_that_differ_in_who_may_do_what_are_found() -> None:
    simulation = Simulation(1)

    async def main() -> None:
        cluster = _HalfClosed(simulation, brokers=2)
        await cluster.start()
        client = cluster.client("admin")
        found = await check_cluster(client, ManualClock(0), CRITERIA)
        (finding,) = [f for f in found if "differ" in f.problem]
        assert finding.level == "error"
        assert finding.problem.endswith("broker 1: 'false', broker 2: 'true'")
        await client.close()

    simulation.run(main())


def test_one_partition_of_a_topic_is_described_alone() -> None:
    simulation = Simulation(1)

    async def main() -> None:
        cluster = SimCluster(simulation, brokers=3)
        await cluster.start()
        client = cluster.client("admin")
        await create(client, assignments=[[1, 2], [2, 3], [3, 1]])
        topic = await client.topic("orders")
        (found,) = await describe_replicas(client, [topic], 1)
        assert (found.partition.index, sorted(found.states)) == (1, [2, 3])
        assert [each.partition.index for each in await describe_replicas(client, [topic])] == [
            0,
            1,
            2,
        ]
        link = await client.link(NodeId(2))
        told = await link.call_json(
            ApiKey.DESCRIBE_REPLICAS, {"topics": ["orders", "gone"], "partition": 0}, timeout_s=5
        )
        assert [state["partition"] for state in told["replicas"]] == [0]
        await client.close()

    simulation.run(main())
