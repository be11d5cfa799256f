"""Opening many logs after an unclean stop, before the broker is in service."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from suwi.model.errors import BrokerError
from suwi.replica.partition import Partition

log = logging.getLogger(__name__)

_LOGS_A_JOB = 32
_PROGRESS_EVERY_S = 5.0


async def recover_all(partitions: Sequence[Partition]) -> None:
    """Check every log. Says every few seconds how far it has come: that may take minutes."""
    log.info("recovering after an unclean stop", extra={"partitions": len(partitions)})
    loop = asyncio.get_running_loop()
    told_s = loop.time()
    for first in range(0, len(partitions), _LOGS_A_JOB):
        some = partitions[first : first + _LOGS_A_JOB]
        # Nothing else uses the logs: no image is applied, and the broker is not in service.
        await loop.run_in_executor(None, _open, some)
        if loop.time() - told_s >= _PROGRESS_EVERY_S:
            told_s = loop.time()
            log.info("logs recovered", extra={"done": first + len(some), "of": len(partitions)})
    for partition in partitions:
        # Watermarks fell where a power loss took records. The first one writes for all of them.
        with suppress(BrokerError):
            if not partition.replica_log.prepare():
                await partition.replica_log.settled()
    log.info("all logs recovered", extra={"partitions": len(partitions)})


def _open(partitions: Sequence[Partition]) -> None:
    for partition in partitions:
        try:
            partition.replica_log.open()
        except BrokerError as error:
            # Its directory is out of use; partitions in others need not suffer.
            log.error(
                "cannot recover",
                extra={"partition": str(partition.partition), "reason": str(error)},
            )
