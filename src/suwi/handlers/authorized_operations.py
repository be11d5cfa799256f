"""The operations a client is authorized for, as bit fields. Without an authorizer: all of them."""

_NOT_REQUESTED = -(2**31)
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 1 << 3, 1 << 4, 1 << 5, 1 << 6, 1 << 7, 1 << 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS = 1 << 9, 1 << 10, 1 << 11
_IDEMPOTENT_WRITE = 1 << 12
_CONFIGS = _DESCRIBE_CONFIGS | _ALTER_CONFIGS
_ON_TOPIC = _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _CONFIGS
_ON_CLUSTER = _CREATE | _ALTER | _DESCRIBE | _CLUSTER_ACTION | _CONFIGS | _IDEMPOTENT_WRITE
_ON_GROUP = _READ | _DELETE | _DESCRIBE | _CONFIGS


def on_topic(asked: bool) -> int:
    return _ON_TOPIC if asked else _NOT_REQUESTED


def on_cluster(asked: bool) -> int:
    return _ON_CLUSTER if asked else _NOT_REQUESTED


def on_group(asked: bool) -> int:
    return _ON_GROUP if asked else _NOT_REQUESTED
