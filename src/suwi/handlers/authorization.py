"""What each API asks of the authorizer, as Apache Kafka 4.3 does.

`ASKED` is the table. A request that is allowed or refused as a whole is checked by `guard`, before
its handler; where `BY_HANDLER` stands, the handler asks for each topic, group or transactional id
that the request names. It refuses what is not allowed (`refusal`, or `Request.refuses`), and leaves
out of a response what the client has not named (`Request.may`).
Invariant: every API that has a handler is in the table. A forwarded request is checked where it is
executed, by the controller.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeAlias

from suwi.handlers.json_body import json_reply
from suwi.model.errors import (
    BrokerError,
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    shortened,
)
from suwi.net.answers import Answer, NoReply, Reply
from suwi.net.dispatch import Handler, Request
from suwi.security.acls import CLUSTER_NAME, SUPPORTED_OPERATIONS, Operation, ResourceType
from suwi.wire.codec import encode_refusal, encode_response
from suwi.wire.versions import APIS, ApiKey

Ask: TypeAlias = Callable[[Request], BrokerError | None]
"""Why a request is refused; None if it is not."""

NOT_REQUESTED: Final = -(2**31)
"""In the place of authorized operations."""
_ALL_OPERATIONS: Final = {
    kind: sum(1 << operation for operation in operations)
    for kind, operations in SUPPORTED_OPERATIONS.items()
}
_REFUSALS: Final[Mapping[ResourceType, type[BrokerError]]] = {
    ResourceType.TOPIC: TopicAuthorizationFailed,
    ResourceType.GROUP: GroupAuthorizationFailed,
    ResourceType.CLUSTER: ClusterAuthorizationFailed,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailed,
}


def refusal(
    request: Request, operation: Operation, kind: ResourceType, name: str, called: object = None
) -> BrokerError | None:
    """The error of a client that may not do this; None if it may. `called`: how the client named it
    if not by its name, which the error must not tell then."""
    if not request.refuses(operation, kind, name):
        return None
    right = operation.name.replace("_", " ").lower()
    words = kind.name.replace("_", " ").lower()
    where = "the cluster" if kind is ResourceType.CLUSTER else f"{words} {called or name}"
    return _REFUSALS[kind](f"{request.client.principal} has no right to {right} on {where}")


def check(request: Request, operation: Operation, kind: ResourceType, name: str) -> None:
    """Raises the error of a client that may not do this."""
    error = refusal(request, operation, kind, name)
    if error is not None:
        raise error


def check_topic(request: Request, operation: Operation, name: str, called: object = None) -> None:
    """Raises TopicAuthorizationFailed."""
    error = refusal(request, operation, ResourceType.TOPIC, name, called)
    if error is not None:
        raise error


def on_cluster(request: Request, operation: Operation) -> BrokerError | None:
    return refusal(request, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def on_group(request: Request, operation: Operation, name: str) -> BrokerError | None:
    return refusal(request, operation, ResourceType.GROUP, name)


def on_transactional_id(request: Request, operation: Operation, name: str) -> BrokerError | None:
    return refusal(request, operation, ResourceType.TRANSACTIONAL_ID, name)


def _nothing(request: Request) -> BrokerError | None:
    return None


def _by_handler(request: Request) -> BrokerError | None:
    return None


def _cluster(operation: Operation) -> Ask:
    return lambda request: on_cluster(request, operation)


def _group(operation: Operation) -> Ask:
    return lambda request: on_group(request, operation, request.message.group_id)


def _transaction(request: Request) -> BrokerError | None:
    return on_transactional_id(request, Operation.WRITE, request.message.transactional_id)


def _producer(request: Request) -> BrokerError | None:
    """KIP-679: who may write to a topic may be an idempotent producer."""
    if request.message.transactional_id is not None:
        return _transaction(request)
    if request.may(Operation.WRITE, ResourceType.TOPIC, None):
        return None
    return on_cluster(request, Operation.IDEMPOTENT_WRITE)


NOTHING: Final[Ask] = _nothing
"""Open to whoever may connect, or for brokers only, which dispatch checks."""
BY_HANDLER: Final[Ask] = _by_handler

ASKED: Final[Mapping[int, Ask]] = {
    ApiKey.PRODUCE: BY_HANDLER,
    ApiKey.FETCH: BY_HANDLER,
    ApiKey.LIST_OFFSETS: BY_HANDLER,
    ApiKey.METADATA: BY_HANDLER,
    ApiKey.OFFSET_COMMIT: BY_HANDLER,
    ApiKey.OFFSET_FETCH: BY_HANDLER,
    ApiKey.FIND_COORDINATOR: BY_HANDLER,
    ApiKey.JOIN_GROUP: _group(Operation.READ),
    ApiKey.HEARTBEAT: _group(Operation.READ),
    ApiKey.LEAVE_GROUP: _group(Operation.READ),
    ApiKey.SYNC_GROUP: _group(Operation.READ),
    ApiKey.DESCRIBE_GROUPS: BY_HANDLER,
    ApiKey.LIST_GROUPS: BY_HANDLER,
    ApiKey.SASL_HANDSHAKE: NOTHING,
    ApiKey.API_VERSIONS: NOTHING,
    ApiKey.CREATE_TOPICS: BY_HANDLER,
    ApiKey.DELETE_TOPICS: BY_HANDLER,
    ApiKey.DELETE_RECORDS: BY_HANDLER,
    ApiKey.INIT_PRODUCER_ID: _producer,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: BY_HANDLER,
    ApiKey.ADD_PARTITIONS_TO_TXN: BY_HANDLER,
    ApiKey.ADD_OFFSETS_TO_TXN: lambda request: (
        _transaction(request) or _group(Operation.READ)(request)
    ),
    ApiKey.END_TXN: _transaction,
    ApiKey.WRITE_TXN_MARKERS: BY_HANDLER,
    ApiKey.TXN_OFFSET_COMMIT: BY_HANDLER,
    ApiKey.DESCRIBE_ACLS: _cluster(Operation.DESCRIBE),
    ApiKey.CREATE_ACLS: BY_HANDLER,
    ApiKey.DELETE_ACLS: BY_HANDLER,
    ApiKey.DESCRIBE_CONFIGS: BY_HANDLER,
    ApiKey.ALTER_CONFIGS: BY_HANDLER,
    ApiKey.DESCRIBE_LOG_DIRS: _cluster(Operation.DESCRIBE),
    ApiKey.SASL_AUTHENTICATE: NOTHING,
    ApiKey.CREATE_PARTITIONS: BY_HANDLER,
    ApiKey.DELETE_GROUPS: BY_HANDLER,
    ApiKey.ELECT_LEADERS: BY_HANDLER,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: BY_HANDLER,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _cluster(Operation.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _cluster(Operation.DESCRIBE),
    ApiKey.OFFSET_DELETE: _group(Operation.DELETE),  # and the handler asks for each topic
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: BY_HANDLER,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _cluster(Operation.DESCRIBE),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: BY_HANDLER,
    ApiKey.ALTER_PARTITION: NOTHING,
    ApiKey.UPDATE_FEATURES: _cluster(Operation.ALTER),
    ApiKey.ENVELOPE: NOTHING,
    ApiKey.DESCRIBE_CLUSTER: BY_HANDLER,
    ApiKey.DESCRIBE_PRODUCERS: BY_HANDLER,
    ApiKey.BROKER_HEARTBEAT: NOTHING,
    ApiKey.UNREGISTER_BROKER: _cluster(Operation.ALTER),
    ApiKey.DESCRIBE_TRANSACTIONS: BY_HANDLER,
    ApiKey.LIST_TRANSACTIONS: BY_HANDLER,
    ApiKey.ALLOCATE_PRODUCER_IDS: NOTHING,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: BY_HANDLER,
    ApiKey.CONSUMER_GROUP_DESCRIBE: BY_HANDLER,
    ApiKey.LIST_CONFIG_RESOURCES: _cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: BY_HANDLER,
    ApiKey.DESCRIBE_REPLICAS: _cluster(Operation.DESCRIBE),
    ApiKey.DESCRIBE_BROKER: BY_HANDLER,
    ApiKey.REPORT_LOSS: NOTHING,
    ApiKey.DESCRIBE_EVENTS: _cluster(Operation.DESCRIBE),
    ApiKey.PEER_CHALLENGE: NOTHING,
    ApiKey.PEER_PROOF: NOTHING,
    ApiKey.DESCRIBE_GROUP_HISTORY: _cluster(Operation.DESCRIBE),
    ApiKey.LIVE_TRANSACTIONS: _cluster(Operation.DESCRIBE),
    ApiKey.DESCRIBE_PARTITION_HISTORY: _cluster(Operation.DESCRIBE),
    ApiKey.DESCRIBE_TOPIC_STATS: _cluster(Operation.DESCRIBE),
    ApiKey.WATCH_PARTITION: _cluster(Operation.DESCRIBE),
    ApiKey.DESCRIBE_QUOTA_USAGE: _cluster(Operation.DESCRIBE),
    ApiKey.DESCRIBE_AUDIT_LOG: _cluster(Operation.DESCRIBE),
}


def authorized_operations(
    request: Request, kind: ResourceType, name: str, *, asked: bool = True
) -> int:
    """What the client may do to a resource, as a bit field; without an authorizer, all. Nothing of
    the cluster for a client that may not describe it."""
    if not asked:
        return NOT_REQUESTED
    authorizer, client = request.authorizer, request.client
    if authorizer is None or client.is_peer:
        return _ALL_OPERATIONS[kind]
    if kind is ResourceType.CLUSTER and not request.may(Operation.DESCRIBE, kind, name):
        return 0
    return authorizer.operations(client.principal, client.host, kind, name)


def guard(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """The handlers, those of requests that are refused as a whole with the check before them."""
    return {key: _guarded(ASKED[key], handler) for key, handler in handlers.items()}


def _guarded(ask: Ask, handler: Handler) -> Handler:
    if ask in (NOTHING, BY_HANDLER):
        return handler

    def handle(request: Request) -> Answer | Coroutine[Any, Any, Reply | NoReply]:
        error = ask(request)
        return handler(request) if error is None else _refused(request, error)

    return handle


def _refused(request: Request, error: BrokerError) -> Reply:
    key, version, message = request.api_key, request.version, shortened(error.message)
    if not APIS[key].is_kafkas:
        return json_reply({"error_code": error.code.value, "error_message": message})
    body = encode_refusal(key, version, error.code, message)
    if body is None:  # DescribeLogDirs before v3 tells it by an empty list.
        body = encode_response(key, version, {"results": ()})
    return Reply([body])
