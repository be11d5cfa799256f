"""Validates topic names."""

import re
from collections.abc import Iterable

from suwi.model.errors import InvalidTopic

NAME_CHARACTERS_MAX = 249
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def check_topic_name(name: str) -> None:
    """Raises InvalidTopic with the reason."""
    if not name:
        raise InvalidTopic("the topic name is empty")
    if name in (".", ".."):
        raise InvalidTopic(f"a topic must not be called {name!r}")
    if len(name) > NAME_CHARACTERS_MAX:
        raise InvalidTopic(f"the topic name is longer than {NAME_CHARACTERS_MAX} characters")
    if not _LEGAL.match(name):
        raise InvalidTopic(
            f"the topic name {name!r} may contain only ASCII letters, digits, '.', '_' and '-'"
        )


def check_collision(name: str, existing: Iterable[str]) -> None:
    """`a.b` and `a_b` would have the same metric names: as in Kafka, only one of them may exist."""
    if "." not in name and "_" not in name:
        return
    folded = name.replace(".", "_")
    for other in existing:
        if other != name and other.replace(".", "_") == folded:
            raise InvalidTopic(f"topic {name!r} collides with {other!r}")
