"""Real clients during kills, pauses, partitions, slow followers and full disks.

No acknowledged record is lost, none is stored twice, and in the end all replicas have the same
bytes. `simulation.history_checker` checks the requests and results of the clients.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from simulation.history import History
from simulation.history_checker import violations
from suwi.testing import Cluster
from tests.clients.drivers import Confluent
from tests.testing.long_runners import CLIENTS, LongRunner, Progress
from tests.testing.long_runners import Confluent as LongConfluent

TOPIC = "in-trouble"
SOME = 40
"""Records that must be acknowledged before and after each fault."""

Fault = Callable[[Cluster, Progress], None]


def kill(cluster: Cluster, progress: Progress) -> None:
    leader = cluster.wait_leader(TOPIC)
    cluster.kill(leader)
    progress.wait_acked(SOME)
    cluster.restart(leader)


def kill_the_controller(cluster: Cluster, progress: Progress) -> None:
    controller = cluster.controller()
    assert controller is not None
    cluster.kill(controller)
    progress.wait_acked(SOME)
    cluster.restart(controller)


def kill_one_after_the_other(cluster: Cluster, progress: Progress) -> None:
    """Until one broker is left as leader. Some clients know only killed brokers and miss it."""
    dead = []
    for _ in range(2):
        dead.append(cluster.wait_leader(TOPIC))
        cluster.kill(dead[-1])
    assert cluster.wait_leader(TOPIC) not in dead
    for broker in dead:
        cluster.restart(broker)


def pause(cluster: Cluster, progress: Progress) -> None:
    """Long enough for a new election; then the old leader resumes with stale leadership."""
    leader = cluster.wait_leader(TOPIC)
    cluster.pause(leader)
    assert cluster.wait_leader(TOPIC) != leader
    if progress.bypasses_silence:
        progress.wait_acked(SOME)
    cluster.resume(leader)


def partition(cluster: Cluster, progress: Progress) -> None:
    """An isolated leader cannot commit, even though clients still reach it."""
    leader = cluster.wait_leader(TOPIC)
    cluster.partition({leader}, set(cluster.brokers) - {leader})
    progress.wait_stuck(SOME)
    cluster.heal()


def partition_and_session(cluster: Cluster, progress: Progress) -> None:
    """Isolated and failed: another broker leads while clients still reach the old leader."""
    leader = cluster.wait_leader(TOPIC)
    cluster.partition({leader}, set(cluster.brokers) - {leader})
    progress.wait_stuck(SOME)
    cluster.expire_session(leader)
    progress.wait_acked(SOME)
    cluster.heal()


def slow(cluster: Cluster, progress: Progress) -> None:
    leader = cluster.wait_leader(TOPIC)
    follower = next(broker for broker in cluster.brokers if broker != leader)
    cluster.slow(follower, ms=100)
    progress.wait_acked(SOME)
    cluster.heal()


def wait_for_another_leader(cluster: Cluster, last: int) -> None:
    """The last leader may still acknowledge what was appended before the disk was full."""
    deadline_s = time.monotonic() + 60
    while cluster.wait_leader(TOPIC) == last:
        assert time.monotonic() < deadline_s, "there is no new leader"
        time.sleep(0.05)


def full_disk(cluster: Cluster, progress: Progress) -> None:
    """The leader cannot write: another broker leads, and the first returns when there is space."""
    leader = cluster.wait_leader(TOPIC)
    cluster.fill_disk(leader)
    wait_for_another_leader(cluster, leader)
    progress.wait_acked(SOME)
    cluster.free_disk(leader)


def power_loss(cluster: Cluster, progress: Progress) -> None:
    """The leader's machine loses power and its unsynced data."""
    leader = cluster.wait_leader(TOPIC)
    cluster.power_loss(leader)
    assert cluster.wait_leader(TOPIC) != leader
    progress.wait_acked(SOME)
    cluster.restart(leader)


def rolling_restart(cluster: Cluster, progress: Progress) -> None:
    for broker in cluster.brokers:
        cluster.restart(broker)
        cluster.wait_until_healthy()
        progress.wait_acked(1)


FAULTS: tuple[Fault, ...] = (
    kill,
    kill_the_controller,
    pause,
    partition,
    partition_and_session,
    slow,
    full_disk,
    rolling_restart,
    # The last one: until they refresh the metadata, some clients know only one broker.
    kill_one_after_the_other,
)


def log_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def check_history(cluster: Cluster, history: History, client: LongRunner) -> None:
    """After all faults have ended: check the records of the cluster against the history."""
    cluster.wait_until_healthy()
    leader = cluster.wait_leader(TOPIC)
    end = cluster.replicas(TOPIC)[leader].high_watermark
    client.read_up_to(end)
    found = Confluent().consume(cluster.bootstrap_servers, {TOPIC: end})[TOPIC]
    history.final(f"{TOPIC}-0", [(record.offset, record.value or b"") for record in found])
    assert violations(history) == []
    states = cluster.replicas(TOPIC).values()
    assert {state.log_end for state in states} == {end}
    assert len({state.epochs for state in states}) == 1
    assert len({log_bytes(cluster.files(n) / f"{TOPIC}-0") for n in cluster.brokers}) == 1


def run(client_class: type[LongRunner], faults: Sequence[Fault], **configs: object) -> None:
    history = History()
    with Cluster(brokers=3, session_timeout_s=0.5) as cluster:
        cluster.create_topic(TOPIC, configs=configs)
        client = client_class(cluster.bootstrap_servers, TOPIC, history)
        with client.running() as progress:
            for fault in faults:
                progress.wait_acked(SOME)
                fault(cluster, progress)
                cluster.wait_until_healthy()
            progress.wait_acked(SOME)
        assert progress.acked == progress.sent, progress.errors
        check_history(cluster, history, client)


@pytest.mark.parametrize(
    "client_class",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.slow] * (each is not LongConfluent))
        for each in CLIENTS
    ],
)
def test_no_acknowledged_record_is_lost_or_stored_twice(client_class: type[LongRunner]) -> None:
    run(client_class, FAULTS)


@pytest.mark.slow
def test_no_acknowledged_record_is_lost_when_brokers_lose_power_one_after_another() -> None:
    """One replica of at least two each time, which min.insync.replicas=2 tolerates."""
    run(LongConfluent, [power_loss] * 3, **{"min.insync.replicas": 2})
