"""DescribeCluster v0-v2. v1: endpoint type. v2: fenced brokers.

Unlike Metadata it names no controller while there is none.
"""

from kio.schema.errors import ErrorCode

from suwi.handlers.authorization import authorized_operations
from suwi.handlers.errors import reply
from suwi.handlers.metadata import broker_fields
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import CLUSTER_NAME, ResourceType

_BROKERS = 1
_CONTROLLERS = 2


def describe_cluster(replicas: ReplicaManager, request: Request) -> Answer:
    image = replicas.image
    endpoint_type = getattr(request.message, "endpoint_type", _BROKERS)
    error, message = ErrorCode.none, None
    if endpoint_type == _CONTROLLERS:
        error = ErrorCode.mismatched_endpoint_type
        message = "this is a broker endpoint, not a controller endpoint"
    elif endpoint_type != _BROKERS:
        error = ErrorCode.unsupported_endpoint_type
        message = f"endpoint type {endpoint_type} is unknown"
    known = error is ErrorCode.none
    asked = request.message.include_cluster_authorized_operations
    with_fenced = getattr(request.message, "include_fenced_brokers", False)
    listed = image.registered_brokers if with_fenced else image.unfenced_brokers
    brokers = [
        {**fields, "is_fenced": fields["broker_id"] not in image.unfenced_brokers}
        for fields in broker_fields(listed.values(), request.client.listener, "broker_id")
    ]
    return reply(
        request,
        {
            "error_code": error,
            "error_message": message,
            "endpoint_type": endpoint_type,
            "cluster_id": image.cluster_id if known else "",
            "controller_id": -1 if image.controller is None else image.controller,
            "brokers": brokers if known else [],
            "cluster_authorized_operations": authorized_operations(
                request, ResourceType.CLUSTER, CLUSTER_NAME, asked=asked
            ),
        },
    )
