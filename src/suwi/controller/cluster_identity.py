"""What all brokers of a cluster share, created by the first: the cluster id, and secrets.

`identify` compares the cluster id in the metadata store with what the data directories say.
"""

from suwi.env import Random
from suwi.log.checkpoints import ForeignDirectory, Identity, topic_id_text
from suwi.log.log_directories import LogDirectories
from suwi.metadata.image import CLUSTER, FEATURES, encode_features
from suwi.metadata.store import ABSENT, MetadataStore, Put
from suwi.model.features import NEW_CLUSTER
from suwi.model.ids import NodeId

_SECRET_BYTES = 32


async def identify(
    node_id: NodeId, directories: LogDirectories, store: MetadataStore, random: Random
) -> Identity:
    """A new cluster gets its id here. Raises ForeignDirectory, Unavailable."""
    cluster_id = await _cluster_id(directories, store, random)
    identity = directories.identify(node_id, cluster_id)
    if identity.cluster_id != cluster_id:
        raise ForeignDirectory(
            f"{next(iter(directories)).path} belongs to cluster {identity.cluster_id}, "
            f"the metadata to {cluster_id}"
        )
    return identity


async def _cluster_id(directories: LogDirectories, store: MetadataStore, random: Random) -> str:
    await store.sync()  # A stale read must not be taken for lost data.
    while True:
        known = await store.read(CLUSTER)
        if known is not None:
            return known.value.decode()
        own = directories.known_cluster_id()
        if own is not None and store.is_shared:
            raise ForeignDirectory(
                f"{next(iter(directories)).path} belongs to cluster {own}, but the metadata store "
                "holds no cluster: its address or path is wrong, or it has lost its data. "
                "Correct the address, restore the data, or start with an empty directory"
            )
        # If several brokers start at once, only one of the conditional writes succeeds.
        new = own or topic_id_text(random.uuid())
        features = Put(FEATURES, encode_features(NEW_CLUSTER), ABSENT)
        await store.write([Put(CLUSTER, new.encode(), ABSENT), features])
        await store.sync()


async def cluster_secrets(store: MetadataStore, random: Random, *keys: str) -> list[bytes]:
    """The cluster's secrets under these keys of the store; missing ones are created."""
    while True:
        known = {key: await store.read(key) for key in keys}
        missing = [key for key, entry in known.items() if entry is None]
        if not missing:
            return [entry.value for entry in known.values() if entry is not None]
        # If several brokers start at once, only one of the conditional writes succeeds.
        await store.write([Put(key, random.token(_SECRET_BYTES), ABSENT) for key in missing])
        await store.sync()
