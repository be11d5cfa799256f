"""A broker that stops hands its partitions over first (controlled shutdown)."""

import asyncio
import logging

from kio.schema.errors import ErrorCode

from suwi.broker.controller_election import ControllerElection
from suwi.client.errors import error_from
from suwi.metadata.image import ClusterImage
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.replica.peers import Peers
from suwi.wire.errors import MalformedResponse
from suwi.wire.versions import APIS, ApiKey

log = logging.getLogger(__name__)

_PATIENCE_S = 5.0
_PAUSE_S = 0.1
_VERSION = APIS[ApiKey.BROKER_HEARTBEAT].max_version


async def controlled_shutdown(
    node_id: NodeId,
    epoch: int,
    image: ClusterImage,
    controller_election: ControllerElection,
    peers: Peers,
) -> None:
    """Have the controller let others lead; returns when it has, or cannot be made to."""
    if epoch < 0 or not any(node != node_id for node in image.unfenced_brokers):
        return
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                try:
                    if controller_election.is_active_controller:
                        await controller_election.partitions.shut_down(node_id, epoch)
                    else:
                        await _ask(node_id, epoch, peers)
                    return
                except (OSError, MalformedResponse, BrokerError) as error:
                    log.info("not handed over yet", extra={"reason": str(error)})
                    await asyncio.sleep(_PAUSE_S)
    except TimeoutError:
        log.warning("partitions not handed over", extra={"broker": node_id})


async def _ask(node_id: NodeId, epoch: int, peers: Peers) -> None:
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
