"""Recovers all logs after an unclean shutdown, before the broker registers."""

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
    """Open and check every log, which may take minutes. Logs its progress every few seconds."""
    log.info("recovering logs after an unclean shutdown", extra={"partitions": len(partitions)})
    loop = asyncio.get_running_loop()
    logged_s = loop.time()
    for first in range(0, len(partitions), _LOGS_A_JOB):
        some = partitions[first : first + _LOGS_A_JOB]
        # Nothing else uses the logs: no image is applied, and the broker is not in service yet.
        await loop.run_in_executor(None, _open, some)
        if loop.time() - logged_s >= _PROGRESS_EVERY_S:
            logged_s = loop.time()
            log.info("logs recovered", extra={"done": first + len(some), "of": len(partitions)})
    for partition in partitions:
        # A power loss may have lowered high watermarks. One checkpoint write covers all of them.
        with suppress(BrokerError):
            if not partition.replica_log.prepare():
                await partition.replica_log.wait_for_preparation()
    log.info("log recovery complete", extra={"partitions": len(partitions)})


def _open(partitions: Sequence[Partition]) -> None:
    for partition in partitions:
        try:
            partition.replica_log.open()
        except BrokerError as error:
            # Its data directory failed; partitions in other directories are not affected.
            log.error(
                "log recovery failed",
                extra={"partition": str(partition.partition), "reason": str(error)},
            )
