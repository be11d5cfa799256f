"""What may not be done to the topics of the coordinators, by whomever: their records would be lost.

Everything else is allowed: reassignment, elections, throttles, other settings, and creating them
before a coordinator does.
"""

from collections.abc import Collection
from typing import Final

from suwi.model.errors import InvalidConfig, InvalidTopic
from suwi.model.topic_config import TopicConfig
from suwi.model.topic_names import INTERNAL_TOPICS

_POLICY: Final = ("compact",)
_RETENTION: Final = ("retention.ms", "retention.bytes")


def check_can_grow(name: str) -> None:
    if name in INTERNAL_TOPICS:
        raise InvalidTopic(
            f"the partitions of {name} cannot be increased: a group or transactional id belongs to "
            "a partition by how many there are, and would be looked for in another one"
        )


def check_can_be_deleted(name: str) -> None:
    if name in INTERNAL_TOPICS:
        raise InvalidTopic(
            f"{name} cannot be deleted: it has the state of all groups or transactions"
        )


def check_configs(
    name: str, own: Collection[str], config: TopicConfig, before: TopicConfig
) -> None:
    """Validate the configuration that a topic would have. `own`: what is set on the topic itself;
    `before`: what it has now, or the defaults if it is new. Raises InvalidConfig."""
    if name not in INTERNAL_TOPICS:
        return
    if config.cleanup_policy != _POLICY:
        policy = ",".join(config.cleanup_policy)
        raise InvalidConfig(
            f"cleanup.policy of {name} must be compact, and would be {policy!r}: set "
            "cleanup.policy=compact on the topic"
        )
    for key in _RETENTION:
        if key in own:
            raise InvalidConfig(
                f"{key} cannot be set on {name}, which must keep all keys: remove it"
            )
    if config.max_message_bytes < before.max_message_bytes:
        raise InvalidConfig(
            f"max.message.bytes of {name} is {before.max_message_bytes} and cannot be lowered to "
            f"{config.max_message_bytes}: it may have records of that size already"
        )
