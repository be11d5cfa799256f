"""The topics of a metadata image, as coordinators need them: names, ids and partition counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from suwi.metadata.image import ClusterImage
from suwi.metadata.image import Topic as ImageTopic
from suwi.model.ids import TopicId


class Topic(NamedTuple):
    topic_id: TopicId
    name: str
    partitions: int


@dataclass(slots=True, eq=False)
class Topics:
    _image: ClusterImage
    version: int
    """Another one for each image whose topics differ."""

    def is_outdated_by(self, image: ClusterImage) -> bool:
        """Whether a topic was created, deleted or given partitions."""
        before, after = self._image.topics, image.topics
        if len(before) != len(after):
            return True
        for name, topic in after.items():
            known = before.get(name)
            if known is topic:
                continue
            if known is None or known.id != topic.id:
                return True
            if len(known.partitions) != len(topic.partitions):
                return True
        return False

    def by_name(self, name: str) -> Topic | None:
        return _topic(self._image.topics.get(name))

    def by_id(self, topic_id: TopicId) -> Topic | None:
        return _topic(self._image.topics_by_id.get(topic_id))

    def names(self) -> Sequence[str]:
        return list(self._image.topics)


NO_TOPICS: Final = Topics(ClusterImage(), 0)


def _topic(found: ImageTopic | None) -> Topic | None:
    return Topic(found.id, found.name, len(found.partitions)) if found is not None else None
