"""The operations a client is authorized for, as bit fields. Without an authorizer: all of them."""

_NOT_REQUESTED = -(2**31)
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


_ON_TOPIC = _bits(
    _READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS
)
_ON_CLUSTER = _bits(
    _CREATE,
    _ALTER,
    _DESCRIBE,
    _CLUSTER_ACTION,
    _DESCRIBE_CONFIGS,
    _ALTER_CONFIGS,
    _IDEMPOTENT_WRITE,
)

_ON_GROUP = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)


def on_topic(asked: bool) -> int:
    return _ON_TOPIC if asked else _NOT_REQUESTED


def on_cluster(asked: bool) -> int:
    return _ON_CLUSTER if asked else _NOT_REQUESTED


def on_group(asked: bool) -> int:
    return _ON_GROUP if asked else _NOT_REQUESTED
