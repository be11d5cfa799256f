"""The run of `chaos/run.py` with a table and a topic as outputs of one read: `--sink outputs`.

Chance decides where each row goes: what a batch has sent to one output in one attempt goes to
another in the next. In the end both outputs together equal the topic.
"""

from chaos.checker import Row
from chaos.topic_sink import TopicRun


class OutputsRun(TopicRun):
    def _sink_arguments(self) -> dict[str, str]:
        return {**super()._sink_arguments(), "table": str(self._table)}

    def _commits(self) -> int:
        """How many manifests were stored: the next moments are those of the commits."""
        manifests = (self._home / "checkpoints").glob("*/suwi-outputs/[0-9]*.json")
        self._seen |= {str(path): 1 for path in manifests}
        return len(self._seen)

    def _rows(self) -> list[Row]:
        return self._rows_of_topic() + self._rows_of_table()
