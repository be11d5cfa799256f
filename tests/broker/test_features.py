"""Features of a cluster: finalized through any broker, seen on all of them."""

import json
from typing import Any

import pytest

from suwi.client.connection import PeerConnection
from suwi.metadata.image import BrokerInfo, decode_broker, encode_broker
from suwi.model.features import BEFORE_FEATURES, NEW_CLUSTER, SUPPORTED
from suwi.model.ids import NodeId
from suwi.sim.cluster import PORT, SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.test_inter_broker_requests import other_than
from tests.broker.test_simulated_cluster import controller, image, run, until

OK, UNSUPPORTED_VERSION, INVALID_UPDATE_VERSION = 0, 35, 95
UPGRADE, SAFE_DOWNGRADE = 1, 2


async def update(
    client: PeerConnection, version: int, feature: str, level: int, kind: int, **fields: Any
) -> Any:
    asked = {
        "feature": feature,
        "max_version_level": level,
        "upgrade_type": kind,
        "allow_downgrade": kind != UPGRADE,
    }
    request = {"timeout": 1000, "feature_updates": [asked], "validate_only": False, **fields}
    return await client.call(ApiKey.UPDATE_FEATURES, version, request)


async def finalized(client: PeerConnection) -> tuple[dict[str, int], int]:
    names = {"client_software_name": "test", "client_software_version": "1"}
    answer = await client.call(ApiKey.API_VERSIONS, 4, names)
    supported = {f.name: (f.min_version, f.max_version) for f in answer.supported_features}
    assert supported == {name: (0, level) for name, level in SUPPORTED.items()}
    levels = {f.name: f.max_version_level for f in answer.finalized_features}
    return levels, answer.finalized_features_epoch


def test_a_new_cluster_has_the_newest_features() -> None:
    async def scenario(cluster: SimCluster) -> None:
        for number in (1, 2, 3):
            client = await PeerConnection.open(f"b{number}", PORT)
            assert await finalized(client) == (dict(NEW_CLUSTER.levels), 1)
        for broker in image(cluster, 1).registered_brokers.values():
            assert broker.features == SUPPORTED

    run(scenario)


def test_java_clients_before_3_8_see_no_feature_that_may_have_the_version_0() -> None:
    """They send ApiVersions v3, and fail at a smallest version below 1 (KAFKA-17492)."""

    async def scenario(_: SimCluster) -> None:
        client = await PeerConnection.open("b1", PORT)
        names = {"client_software_name": "apache-kafka-java", "client_software_version": "3.7.2"}
        answer = await client.call(ApiKey.API_VERSIONS, 3, names)
        assert list(answer.supported_features) == []
        assert {f.name for f in answer.finalized_features} == NEW_CLUSTER.levels.keys()

    run(scenario)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_any_broker_downgrades_and_upgrades_a_feature_of_all_brokers(version: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        client = await PeerConnection.open(f"b{other_than(controller(cluster))}", PORT)
        feature = "transaction.version"
        for epoch, level, kind in ((2, 1, SAFE_DOWNGRADE), (3, 2, UPGRADE)):
            answer = await update(client, version, feature, level, kind)
            assert answer.error_code == OK
            if version < 2:
                assert [(r.feature, r.error_code) for r in answer.results] == [(feature, OK)]
            await until(lambda e=epoch: all(image(cluster, n).features.epoch == e for n in (1, 2)))
            levels, seen = await finalized(client)
            assert (levels[feature], seen) == (level, epoch)

    run(scenario)


@pytest.mark.parametrize("version", [1, 2])
def test_a_refused_and_a_validated_update_change_nothing(version: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        client = await PeerConnection.open("b1", PORT)
        refused = await update(client, version, "group.version", 0, UPGRADE)
        assert refused.error_code == INVALID_UPDATE_VERSION
        assert "group.version" in refused.error_message
        only = await update(client, version, "group.version", 0, SAFE_DOWNGRADE, validate_only=True)
        assert only.error_code == OK
        assert await finalized(client) == (dict(NEW_CLUSTER.levels), 1)

    run(scenario)


def test_without_group_version_1_there_are_no_consumer_protocol_heartbeats() -> None:
    async def scenario(_: SimCluster) -> None:
        client = await PeerConnection.open("b1", PORT)
        assert (await update(client, 2, "group.version", 0, SAFE_DOWNGRADE)).error_code == OK
        heartbeat = {
            "group_id": "g",
            "member_id": "m",
            "member_epoch": 0,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": 1000,
            "subscribed_topic_names": ["t"],
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": [],
        }
        answer = await client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat)
        assert answer.error_code == UNSUPPORTED_VERSION

    run(scenario, brokers=1)


def test_a_registration_without_features_is_an_older_brokers() -> None:
    value = json.loads(encode_broker(BrokerInfo(NodeId(1), (), None, 1, features=SUPPORTED)))
    assert decode_broker(NodeId(1), json.dumps(value).encode()).features == SUPPORTED
    del value["features"]
    assert decode_broker(NodeId(1), json.dumps(value).encode()).features == BEFORE_FEATURES
