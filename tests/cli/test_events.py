"""`suwi cluster events`: the recorded events of the cluster."""

from typing import Any

import pytest

from suwi.admin.event_text import event_text
from suwi.metadata.cluster_events import (
    LOSS_UNKNOWN,
    RECORDS_LOST,
    SUSPECT_ELECTION,
    UNCLEAN_ELECTION,
)
from suwi.testing import Cluster
from tests.cli.support import Suwi
from tests.testing.clients import send, until

TOPIC = "water"


def test_a_loss_is_shown_to_people_and_to_scripts() -> None:
    settings = {"unclean.leader.election.enable": True, "replica.lag.time.max.ms": 30_000}
    with Cluster(brokers=3, settings=settings) as cluster:
        suwi = Suwi(cluster.bootstrap_servers)
        assert suwi.ok("cluster", "events") == "no election has lost records\n"
        assert suwi.json("cluster", "events") == []

        cluster.create_topic(TOPIC, replication_factor=2)
        leader = cluster.wait_leader(TOPIC)
        (other,) = {1, 2, 3} & set(cluster.replicas(TOPIC)) - {leader}
        assert send(cluster.bootstrap_servers, TOPIC, "a") == []
        cluster.kill(other)
        cluster.wait_isr(TOPIC, 0, {leader})
        assert send(cluster.bootstrap_servers, TOPIC, "b", "c") == []
        cluster.kill(leader)
        cluster.restart(other)
        assert cluster.wait_leader(TOPIC) == other
        cluster.wait_event(UNCLEAN_ELECTION)
        cluster.restart(leader)
        cluster.wait_event(RECORDS_LOST)
        cluster.wait_until_healthy()

        # The image of the broker that is asked may lag behind.
        until(lambda: len(suwi.json("cluster", "events")) == 2)
        election, loss = suwi.json("cluster", "events")
        assert (election["kind"], election["facts"]["leader"]) == (UNCLEAN_ELECTION, other)
        assert (loss["kind"], loss["facts"]["broker"]) == (RECORDS_LOST, leader)
        assert loss["facts"]["ranges"] == [{"epoch": 0, "first": 1, "end": 3}]
        heading, _, last = suwi.ok("cluster", "events").splitlines()
        assert heading.split() == ["Time", "Event", "Partition", "Details"]
        assert f"{TOPIC}-0" in last
        assert f"broker {leader} lost 1-2 of epoch 0; " in last


def lost(first: int, end: int, *, committed_below: int) -> dict[str, Any]:
    ranges = [{"epoch": 3, "first": first, "end": end}]
    return {"broker": 1, "ranges": ranges, "committed_below": committed_below}


@pytest.mark.parametrize(
    ("kind", "facts", "text"),
    [
        (
            RECORDS_LOST,
            lost(2, 7, committed_below=7),
            "broker 1 lost 2-6 of epoch 3; all were committed",
        ),
        (
            RECORDS_LOST,
            lost(2, 7, committed_below=2),
            "broker 1 lost 2-6 of epoch 3; any may have been committed",
        ),
        (
            RECORDS_LOST,
            lost(2, 7, committed_below=3),
            "broker 1 lost 2-6 of epoch 3; 2 committed, the others may have been",
        ),
        (
            UNCLEAN_ELECTION,
            {"leader": 2, "epoch": 5, "lost_at_least": [2, 5]},
            "broker 2 leads in epoch 5; lost at least 2-4",
        ),
        (
            UNCLEAN_ELECTION,
            {"leader": 2, "epoch": 5, "lost_at_least": None},
            f"broker 2 leads in epoch 5; lost records, if any: {LOSS_UNKNOWN}",
        ),
        (
            SUSPECT_ELECTION,
            {"leader": 2, "epoch": 5, "recovery_point": 4, "log_end": 9},
            "broker 2 leads in epoch 5; synced up to 4, its log ends at 9",
        ),
        (
            SUSPECT_ELECTION,
            {"leader": 2, "epoch": 5, "recovery_point": None, "log_end": None},
            "broker 2 leads in epoch 5; its synced offset is unknown",
        ),
        ("flood", {"metres": 3}, '{"metres": 3}'),
    ],
)
def test_each_kind_of_event_has_a_text(kind: str, facts: dict[str, Any], text: str) -> None:
    assert event_text(kind, facts) == text
