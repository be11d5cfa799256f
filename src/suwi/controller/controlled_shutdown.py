"""Controlled shutdown: a stopping broker moves its partition leaderships to other brokers first."""

import asyncio
import logging
from collections.abc import Collection

from kio.schema.errors import ErrorCode

from suwi.client.errors import error_from
from suwi.controller.controller_election import ControllerElection
from suwi.metadata.image import ClusterImage
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.replica.peers import Peers
from suwi.wire.errors import MalformedResponse
from suwi.wire.versions import APIS, ApiKey

log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_RETRY_S = 0.1
_VERSION = APIS[ApiKey.BROKER_HEARTBEAT].max_version


async def controlled_shutdown(
    node_id: NodeId,
    stopping: Collection[NodeId],
    epoch: int,
    image: ClusterImage,
    controller_election: ControllerElection,
    peers: Peers,
) -> None:
    """Ask the controller to elect other leaders; returns when it has, or after a time limit.

    `stopping` are the brokers that stop together with this one, and this one: if no other is left,
    nobody can take over.
    """
    if epoch < 0 or not any(node not in stopping for node in image.unfenced_brokers):
        return
    controller_election.is_shutting_down = True
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                try:
                    if controller_election.is_active_controller:
                        await controller_election.active.partitions.shut_down(node_id, epoch)
                    else:
                        await _send_heartbeat(node_id, epoch, peers)
                    return
                except (OSError, MalformedResponse, BrokerError) as error:
                    log.info("controlled shutdown failed, retrying", extra={"reason": str(error)})
                    await asyncio.sleep(_RETRY_S)
    except TimeoutError:
        log.warning("controlled shutdown timed out", extra={"broker": node_id})


async def _send_heartbeat(node_id: NodeId, epoch: int, peers: Peers) -> None:
    connection = await peers.connect_to_controller()
    try:
        answer = await connection.call(
            ApiKey.BROKER_HEARTBEAT,
            _VERSION,
            {
                "broker_id": node_id,
                "broker_epoch": epoch,
                "current_metadata_offset": 0,
                "want_fence": True,
                "want_shut_down": True,
            },
        )
        if answer.error_code != ErrorCode.none:
            raise error_from(answer.error_code)
    finally:
        connection.abort()
