"""The metrics endpoint of a broker."""

import asyncio
import errno
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from suwi.broker.broker import Broker
from suwi.broker.metrics import BrokerCollector, LoopLag, MetricsServer, PartitionFigures
from suwi.client.connection import PeerConnection
from suwi.env import local_env
from suwi.handlers.slices import SLICE_PARTITIONS
from suwi.metadata.memory import MemoryStore
from suwi.model.broker_config import parse_broker_config
from suwi.model.ids import NO_NODE
from suwi.net.stats import NetStats
from suwi.records.batch import read_header
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica.partition_transactions import NOT_VERIFIED
from suwi.sim import SimRandom
from suwi.sim.cluster import SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.simulated import create_topic, produce
from tests.broker.test_simulated_cluster import controller, create, image, run, state, until


async def _get(port: int, path: str, method: str = "GET") -> tuple[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return head.splitlines()[0], body


async def _fail_to_prove(port: int) -> None:
    stranger = await PeerConnection.open("127.0.0.1", port)
    await stranger.send(ApiKey.PEER_CHALLENGE, 0, [bytes(36)])
    stranger.send_unanswered(ApiKey.PEER_PROOF, 0, [bytes(32)])
    await stranger.lost()


def open_transaction(broker: Broker, topic: str) -> None:
    batch = memoryview(
        build_batch(
            [Record(value=b"v")],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )
    partition = broker.replicas.leader_of(topic, 0)
    partition.transactions.append(batch, read_header(batch), 0, NOT_VERIFIED)


def test_metrics_show_requests_traffic_connections_and_logs(tmp_path: object) -> None:
    async def scenario() -> None:
        config = parse_broker_config(
            {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        ).config
        stats = NetStats()
        broker = Broker(local_env(), config, MemoryStore(SimRandom(0)).view(), stats=stats)
        await broker.start()
        server = MetricsServer(broker, stats, "127.0.0.1", 0)
        await server.start()
        client = await PeerConnection.open("127.0.0.1", broker.listeners[0].port)
        await create_topic(client, "orders")
        await produce(client, "orders", [b"a", b"b"])
        open_transaction(broker, "orders")
        await _fail_to_prove(broker.listeners[0].port)

        status, body = await _get(server.port, "/metrics")
        assert status == "HTTP/1.1 200 OK"
        samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(body)
            for sample in family.samples
        }
        assert samples["suwi_request_duration_seconds_count", ("api", "Produce")] == 1
        assert (
            samples["suwi_request_duration_seconds_bucket", ("api", "Produce"), ("le", "+Inf")] == 1
        )
        at = (("partition", "0"), ("topic", "orders"))
        assert samples["suwi_log_end_offset", *at] == 3
        assert samples["suwi_high_watermark", *at] == 3
        assert samples["suwi_last_stable_offset", *at] == 2
        assert samples[("suwi_partition_open_transactions",)] == 1
        assert samples[("suwi_open_transactions",)] == 0
        assert samples[("suwi_oldest_open_transaction_seconds",)] == 0
        assert samples["suwi_log_size_bytes", *at] > 0
        assert samples["suwi_connections", ("listener", "PLAINTEXT")] == 1
        failed = (("listener", "PLAINTEXT"), ("mechanism", "PEER"))
        assert samples["suwi_failed_authentications_total", *failed] == 1
        assert samples[("suwi_received_bytes_total",)] > 0
        assert samples[("suwi_sent_bytes_total",)] > 0
        assert samples[("suwi_active_controller",)] == 1
        assert samples[("suwi_live_brokers",)] == 1
        assert samples[("suwi_offline_partitions",)] == 0
        assert samples[("suwi_under_replicated_partitions",)] == 0
        assert samples[("suwi_under_min_isr_partitions",)] == 0

        assert (await _get(server.port, "/other"))[0] == "HTTP/1.1 404 Not Found"
        assert (await _get(server.port, "/health"))[0] == "HTTP/1.1 200 OK"
        assert (await _get(server.port, "/metrics", "POST"))[0].split()[1] == "405"
        await client.close()
        await server.stop()
        await broker.stop()

    asyncio.run(scenario())


def test_a_scrape_of_many_partitions_yields_to_the_event_loop(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = parse_broker_config(
            {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        ).config
        broker = Broker(local_env(), config, MemoryStore(SimRandom(0)).view())
        await broker.start()
        client = await PeerConnection.open("127.0.0.1", broker.listeners[0].port)
        count = 5 * SLICE_PARTITIONS + 7
        topic = {"name": "many", "num_partitions": count, "replication_factor": 1}
        topic |= {"assignments": [], "configs": []}
        await client.call(ApiKey.CREATE_TOPICS, 7, {"topics": [topic]})
        for partition in broker.replicas:
            partition.replica_log.open()

        figures = PartitionFigures()
        seen = [figures.text().count(b"suwi_log_end_offset{") for _ in figures.gather(broker)]
        assert seen[:5] == [SLICE_PARTITIONS * (number + 1) for number in range(5)]
        text = figures.text().decode()
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        for name in ("log_end_offset", "high_watermark", "log_start_offset", "log_size_bytes"):
            of_it = [s for s in samples if s.name == f"suwi_{name}"]
            assert {(s.labels["topic"], s.labels["partition"]) for s in of_it} == {
                ("many", str(index)) for index in range(count)
            }
            assert {s.value for s in of_it} == {0}
        await client.close()
        await broker.stop()

    asyncio.run(scenario())


def test_metrics_show_under_replicated_and_offline_partitions() -> None:
    async def scenario(cluster: SimCluster) -> None:
        def clean_elections(number: int) -> float:
            return _samples(cluster, number)["suwi_leader_elections_total", "clean"]

        async with cluster.client("test") as client:
            await create(client, assignments=[[1, 2]], configs={"min.insync.replicas": "2"})
            await create(client, name="single", assignments=[[2]])
        await asyncio.sleep(1)
        cluster[2].kill()
        await until(lambda: state(cluster).isr == (1,))
        await asyncio.sleep(1)
        samples = _samples(cluster, 1)
        assert samples[("suwi_under_replicated_partitions",)] == 1
        assert samples[("suwi_under_min_isr_partitions",)] == 1
        assert samples[("suwi_isr_shrinks_total",)] == 1
        assert samples[("suwi_isr_expands_total",)] == 0
        assert samples[("suwi_offline_partitions",)] == 1
        assert samples[("suwi_live_brokers",)] == 2

        active = controller(cluster)
        elected = clean_elections(active)
        await cluster[2].start()
        await until(lambda: state(cluster).isr == (1, 2))
        await until(lambda: image(cluster, 1).topics["single"].partitions[0].leader == 2)
        samples = _samples(cluster, 1)
        assert samples[("suwi_isr_shrinks_total",)] == 1
        assert samples[("suwi_isr_expands_total",)] == 1
        assert samples[("suwi_under_replicated_partitions",)] == 0
        assert samples[("suwi_offline_partitions",)] == 0
        # The partition with one replica has its leader again.
        await until(lambda: clean_elections(active) == elected + 1)
        samples = _samples(cluster, 2)
        assert samples[("suwi_replicas",)] == 2  # one as leader, one as follower
        assert samples[("suwi_partitions",)] == 1

    run(scenario)


def test_controller_metrics_count_clean_and_unclean_elections() -> None:
    async def scenario(cluster: SimCluster) -> None:
        active = controller(cluster)
        first, second = (number for number in (1, 2, 3) if number != active)

        def elections() -> tuple[float, float]:
            samples = _samples(cluster, active)
            return (
                samples["suwi_leader_elections_total", "clean"],
                samples["suwi_leader_elections_total", "unclean"],
            )

        def leader() -> int:
            return state(cluster, seen_by=active).leader

        async with cluster.client("test") as client:
            await create(
                client,
                assignments=[[first, second]],
                configs={"unclean.leader.election.enable": "true"},
            )
        await until(lambda: leader() == first)
        clean, unclean = elections()
        cluster[first].kill()
        await until(lambda: leader() == second)
        await until(lambda: elections() == (clean + 1, unclean))

        cluster[second].kill()
        await until(lambda: leader() == NO_NODE)
        assert elections() == (clean + 1, unclean)
        await cluster[first].start()  # it is not in sync
        await until(lambda: leader() == first)
        await until(lambda: elections() == (clean + 1, unclean + 1))

    run(scenario)


def _samples(cluster: SimCluster, number: int) -> dict[tuple[str, ...], float]:
    """A broker's metrics by name and labels."""
    broker = cluster[number].broker
    assert broker is not None
    collector = BrokerCollector(broker, NetStats(), LoopLag())
    for _ in collector.figures.gather(broker):
        pass
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def test_metrics_show_a_full_disk_per_log_directory(tmp_path: Path) -> None:
    async def scenario() -> None:
        paths = [str(tmp_path / name) for name in ("a", "b")]
        config = parse_broker_config(
            {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": ",".join(paths)}
        ).config
        stats = NetStats()
        broker = Broker(local_env(), config, MemoryStore(SimRandom(0)).view(), stats=stats)
        await broker.start()
        second = list(broker.directories)[1]
        second.state.failed(OSError(errno.ENOSPC, "full"))
        second.state.failed(OSError(errno.ENOSPC, "full"))
        samples = {
            (sample.name, sample.labels.get("directory")): sample.value
            for family in BrokerCollector(broker, stats, LoopLag()).collect()
            for sample in family.samples
        }
        for path, full, errors in zip(paths, (0, 1), (0, 2), strict=True):
            assert samples["suwi_log_directory_full", path] == full
            assert samples["suwi_log_directory_full_errors_total", path] == errors
        assert samples["suwi_offline_replicas", None] == 0
        await broker.stop()

    asyncio.run(scenario())
