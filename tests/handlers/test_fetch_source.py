"""Which followers may fetch."""

from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from suwi.handlers.fetch_job import FetchSource
from suwi.metadata.image import BrokerInfo, ClusterImage
from suwi.model.errors import NotLeaderOrFollower, StaleBrokerEpoch
from suwi.model.ids import NodeId


def check(node: int, epoch: int) -> None:
    brokers = {NodeId(2): BrokerInfo(NodeId(2), (), epoch=7)}
    replicas: Any = SimpleNamespace(
        image=ClusterImage(registered_brokers=MappingProxyType(brokers))
    )
    partition: Any = SimpleNamespace(
        leader_state=SimpleNamespace(followers={NodeId(2), NodeId(3)}), partition="orders-0"
    )
    synced: Any = None
    FetchSource(replicas, 1, synced).check_follower(partition, NodeId(node), epoch)


@pytest.mark.parametrize(("node", "epoch"), [(2, 7), (2, 8), (3, 1)])
def test_a_follower_that_is_not_in_the_image_yet_may_read(node: int, epoch: int) -> None:
    """Its leader may be cut off from the metadata store, and acks=all would wait for it."""
    check(node, epoch)


def test_a_broker_that_has_registered_again_since_may_not_read() -> None:
    with pytest.raises(StaleBrokerEpoch):
        check(2, 6)


def test_a_broker_without_a_replica_may_not_read() -> None:
    with pytest.raises(NotLeaderOrFollower):
        check(4, 7)
