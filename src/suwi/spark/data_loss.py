"""Records that are gone before they were read: an error, or a warning, as `failOnDataLoss` says.

`CheckpointMismatch` is for what no option lets pass: a checkpoint of other topics, or of
another source.
"""

import logging

log = logging.getLogger(__name__)

_WAY_OUT = (
    "Records were removed by retention or DeleteRecords, or a topic was deleted, before they were "
    'read. To go on with what is there, set the option failOnDataLoss to "false"'
)


class DataLoss(RuntimeError):
    """What a query had to read is not there any more."""


class CheckpointMismatch(RuntimeError):
    """The checkpoint belongs to another query; the text says what to do."""


class LossReporter:
    def __init__(self, *, fail: bool) -> None:
        self._fail = fail

    def report(self, what: str, way_out: str = _WAY_OUT) -> None:
        """Raises `DataLoss`, unless the query shall go on."""
        if self._fail:
            raise DataLoss(f"{what}. {way_out}.")
        log.warning("data lost: %s", what)
