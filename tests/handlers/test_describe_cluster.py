"""DescribeCluster: who is fenced, and who is the controller."""

from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

from suwi.handlers.describe_cluster import describe_cluster
from suwi.metadata.image import BrokerInfo, ClusterImage, Endpoint
from suwi.model.ids import NodeId
from suwi.wire.codec import read_response
from suwi.wire.versions import ApiKey
from tests.handlers.requests import PEER, request

ONE, TWO = NodeId(1), NodeId(2)


def describe(image: ClusterImage, *, with_fenced: bool) -> Any:
    replicas: Any = SimpleNamespace(image=image)
    fields = {
        "include_cluster_authorized_operations": False,
        "endpoint_type": 1,
        "include_fenced_brokers": with_fenced,
    }
    asked = request(ApiKey.DESCRIBE_CLUSTER, 2, fields)
    answer: Any = describe_cluster(replicas, asked)
    return read_response(ApiKey.DESCRIBE_CLUSTER, 2, b"".join(answer.chunks))


def test_fenced_brokers_are_listed_if_asked_for_and_no_controller_is_invented() -> None:
    endpoint = Endpoint(PEER.listener, "host", 9092)
    brokers = {node: BrokerInfo(node, (endpoint,)) for node in (ONE, TWO)}
    image = ClusterImage(
        cluster_id="c",
        registered_brokers=MappingProxyType(brokers),
        unfenced_brokers=MappingProxyType({ONE: brokers[ONE]}),
    )
    for with_fenced, expected in ((False, [(1, False)]), (True, [(1, False), (2, True)])):
        answer = describe(image, with_fenced=with_fenced)
        assert [(b.broker_id, b.is_fenced) for b in answer.brokers] == expected
        assert answer.controller_id == -1
    assert describe(replace(image, controller=TWO), with_fenced=False).controller_id == 2
