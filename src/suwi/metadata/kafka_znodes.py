"""A copy of a few facts at the znodes where readers of Apache Kafka's books look for them.

    /cluster/id         the cluster's id, written by the first broker
    /brokers/ids/<id>   a broker's endpoints, ephemeral, written by that broker
    /controller         the id of the controller, ephemeral, written by the controller
    /controller_epoch   its epoch, written by the controller

They are below the path of `zookeeper.connect`, in the JSON of Kafka 2.8, readable by anybody. Each
broker copies what its own session holds in the znodes of `zookeeper_format`.
Invariant: no broker takes anything from the copy, and a tree that another cluster made is not
changed.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

from suwi.env.tasks import wait_for_event
from suwi.metadata import zookeeper_format as fmt
from suwi.metadata.image import CLUSTER, Endpoint
from suwi.metadata.store import Closed, ForeignZnodes, MetadataStore, Unavailable
from suwi.metadata.zookeeper_connection import READABLE_ACL, AccessDenied, Connection, may_change
from suwi.metadata.zookeeper_format import Node, Step

log = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 5.0
_PAUSE_S = 0.2
"""At most so often: each change of the metadata is a reason to look."""
_JMX_PORT = -1


class KafkaZnodes:
    def __init__(
        self,
        store: MetadataStore,
        connection: Connection,
        paths: fmt.Paths,
        security_protocols: Mapping[str, str],
    ) -> None:
        """`security_protocols`: of each listener."""
        self._store = store
        self._connection = connection
        self._paths = paths
        self._security_protocols = security_protocols
        self._base = paths.root.rpartition("/")[0]
        self._copied: object = None
        """What was copied last: if it is unchanged, nothing is written."""

    # -- before the first copy -------------------------------------------------------------------

    async def prepare(self) -> None:
        """Create the persistent znodes. Raises ForeignZnodes, Unavailable."""
        entry = await self._store.read(CLUSTER)
        assert entry is not None
        try:
            while not await self._has_cluster_id(entry.value.decode()):
                pass
            for path in ("/cluster", "/cluster/id", "/brokers", "/brokers/ids"):
                if await may_change(self._connection, self._base + path):
                    raise ForeignZnodes(
                        f"{self._base}{path} in ZooKeeper can be changed by anybody: delete it, "
                        "or set zookeeper.copy.enable=false"
                    )
            for path in ("/brokers", "/brokers/ids"):
                await self._connection.create([(self._base + path, b"", READABLE_ACL)])
        except AccessDenied:
            raise self._foreign("is open to other credentials only") from None

    async def _has_cluster_id(self, cluster_id: str) -> bool:
        """Whether `/cluster/id` is this cluster's; tries to write it where there is nothing."""
        await self._connection.sync()
        names = ("/cluster/id", "/brokers/topics", "/cluster", "/brokers", "/controller")
        found_id, topics, *others = await self._connection.get(*(self._base + n for n in names))
        if found_id is not None:
            if _id_of(found_id[0]) != cluster_id:
                raise self._foreign(f"belongs to cluster {_id_of(found_id[0])}, not {cluster_id}")
            if topics is not None:
                raise self._foreign("has /brokers/topics")
            return True
        if any(others):
            raise self._foreign("has no /cluster/id")
        value = json.dumps({"version": "1", "id": cluster_id}).encode()
        await self._connection.multi(
            [
                ("create", f"{self._base}/cluster", (b"", READABLE_ACL)),
                ("create", f"{self._base}/cluster/id", (value, READABLE_ACL)),
            ]
        )
        return False

    def _foreign(self, why: str) -> ForeignZnodes:
        return ForeignZnodes(
            f"the znodes of Apache Kafka at {self._base or '/'} in ZooKeeper are of another "
            f"cluster (the tree {why}): choose another path in zookeeper.connect, or set "
            "zookeeper.copy.enable=false"
        )

    # -- copying ---------------------------------------------------------------------------------

    async def keep(self, key: str) -> None:
        """Copy the registration of this key, and the controller if it is this broker."""
        changed = asyncio.Event()
        unsubscribe = self._store.subscribe(changed.set)
        last_reason = ""
        try:
            while True:
                changed.clear()
                try:
                    await self._copy(key)
                    last_reason = ""
                except Closed:
                    return
                except (Unavailable, AccessDenied) as error:
                    if str(error) != last_reason:
                        last_reason = str(error)
                        log.warning("znodes not copied, retrying", extra={"reason": last_reason})
                await asyncio.sleep(_PAUSE_S)
                await wait_for_event(changed, _CHECK_INTERVAL_S)
        finally:
            unsubscribe()

    async def _copy(self, key: str) -> None:
        session_id = self._connection.session_id
        own, elected = await self._connection.get(
            self._paths.registration(key), self._paths.controller
        )
        own, elected = (_of_session(node, session_id) for node in (own, elected))
        current = (session_id, own and own[1].czxid, elected and elected[0])
        if current == self._copied:
            return
        node_id = key.rpartition("/")[2]
        broker = self._encode_broker(own) if own else None
        await self._put_ephemeral(f"{self._base}/brokers/ids/{node_id}", broker, session_id)
        if elected is None:
            await self._put_ephemeral(f"{self._base}/controller", None, session_id)
        else:
            await self._put_controller(elected)
        self._copied = current

    async def _put_ephemeral(self, path: str, value: bytes | None, session_id: int | None) -> None:
        """The znode has this value and belongs to this session; None: it does not belong to it."""
        (found,) = await self._connection.get(path)
        if value is None and _of_session(found, session_id) is None:
            return
        steps = _deleting(path, found)
        if value is not None:
            steps.append(("create", path, (value, READABLE_ACL, True)))
        if not await self._connection.multi(steps):
            raise Unavailable(f"{path} has changed meanwhile")

    async def _put_controller(self, elected: Node) -> None:
        """Both znodes in one step, unless a later controller has written them."""
        controller = fmt.decode_controller(elected[0])
        path, epoch_path = f"{self._base}/controller", f"{self._base}/controller_epoch"
        found, known = await self._connection.get(path, epoch_path)
        if known is not None and int(known[0]) > controller.epoch:
            return
        value = {
            "version": 1,
            "brokerid": controller.node_id,
            "timestamp": str(elected[1].ctime),
        }
        epoch = b"%d" % controller.epoch
        steps: list[Step] = [
            ("create", epoch_path, (epoch, READABLE_ACL))
            if known is None
            else ("set_data", epoch_path, (epoch, known[1].version)),
            *_deleting(path, found),
            ("create", path, (json.dumps(value).encode(), READABLE_ACL, True)),
        ]
        if not await self._connection.multi(steps):
            raise Unavailable(f"{path} has changed meanwhile")

    def _encode_broker(self, registration: Node) -> bytes:
        own = json.loads(registration[0])
        endpoints = [Endpoint(*endpoint) for endpoint in own["endpoints"]]
        protocols = {e.listener: self._security_protocols[e.listener] for e in endpoints}
        # As Kafka does for clients that know one endpoint only.
        plain = next((e for e in endpoints if protocols[e.listener] == "PLAINTEXT"), None)
        value: dict[str, Any] = {
            "version": 5,
            "host": plain.host if plain else None,
            "port": plain.port if plain else -1,
            "endpoints": [f"{e.listener}://{_address(e)}" for e in endpoints],
            "jmx_port": _JMX_PORT,
            "timestamp": str(registration[1].ctime),
            "listener_security_protocol_map": protocols,
            "features": {},
        }
        if own["rack"] is not None:
            value["rack"] = own["rack"]
        return json.dumps(value).encode()


def _id_of(cluster: bytes) -> str:
    try:
        return str(json.loads(cluster)["id"])
    except (ValueError, KeyError, TypeError):
        return "unknown"


def _of_session(node: Node | None, session_id: int | None) -> Node | None:
    return node if node is not None and node[1].ephemeralOwner == session_id else None


def _deleting(path: str, found: Node | None) -> list[Step]:
    return [] if found is None else [("delete", path, (found[1].version,))]


def _address(endpoint: Endpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"
