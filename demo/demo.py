"""The main job from end to end: events into a replicated topic, a pipeline into a lake table, and a
broker killed in the middle.

Run it with `make demo`, or `.venv/bin/python demo/demo.py --keep` to look at the table yourself.
It exits with an error if a claim does not hold.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from console_process import open_console
from lake import Pipeline, read_ids
from orders import Orders
from stage import CheckFailed, Stage

from suwi.replica.description import ReplicaState
from suwi.testing import Cluster

TOPIC = "orders"
PARTITIONS = 3
EVENTS = 100_000
SEND_S = 20
"""How long sending takes at least, so that many records are in flight when a broker is killed."""
PATIENCE_S = 300
HERE = Path(__file__).parent
OFFSETS = "__consumer_offsets"


class Demo:
    def __init__(self, stage: Stage, work: Path, events: int) -> None:
        self.stage = stage
        self.work = work
        self.events = events
        self.began_s = time.monotonic()

    def run(self) -> None:
        with Cluster(brokers=3) as cluster:
            self.three_brokers(cluster)
            orders = Orders(cluster.bootstrap_servers, TOPIC, self.events, SEND_S)
            pipeline = Pipeline(HERE / "orders.yaml", cluster.bootstrap_servers, self.work)
            try:
                self.begin(orders, pipeline)
                self.kill_a_leader(cluster, orders)
                self.finish(orders, pipeline)
            finally:
                pipeline.kill()
                orders.stop()
            self.compare(cluster)
            self.look_ahead()
            self.look_around(cluster)

    # -- parts -----------------------------------------------------------------------------------

    def three_brokers(self, cluster: Cluster) -> None:
        stage = self.stage
        stage.act("Three brokers")
        took_ms = 1000 * (time.monotonic() - self.began_s)
        stage.say(
            f"Three Kafka-compatible brokers in one Python process, ready after {took_ms:.0f} ms, "
            "on ports that were free. Any Kafka client can use them:"
        )
        stage.quote([f"bootstrap.servers={cluster.bootstrap_servers}"])
        stage.say(
            f"A topic with {PARTITIONS} partitions, each on all three brokers; at least two must "
            "have a record before it is acknowledged:"
        )
        cluster.create_topic(
            TOPIC, PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
        )
        cluster.wait_until_healthy()
        self.show_partitions(cluster)
        leaders = {cluster.wait_leader(TOPIC, index) for index in range(PARTITIONS)}
        stage.check(leaders == set(cluster.brokers), "each broker leads one partition")

    def begin(self, orders: Orders, pipeline: Pipeline) -> None:
        stage = self.stage
        stage.act("Orders in, a table out")
        stage.say(
            f"A producer (confluent-kafka, idempotent, acks=all) starts to send {self.events:,} "
            "orders. At the same time Spark is started on a pipeline that writes them into a Delta "
            "table, with nothing but Python packages:"
        )
        stage.quote(line.rstrip() for line in (HERE / "orders.yaml").read_text().splitlines())
        orders.start()
        pipeline.start()
        stage.say("Spark takes a few seconds to start.")
        self.wait(
            "the first rows are in the table",
            lambda: pipeline.rows() > 0,
            lambda: f"{orders.acknowledged:,} orders acknowledged, Spark is starting",
            pipeline,
        )
        stage.check(pipeline.rows() > 0, f"{pipeline.rows():,} rows are in the table")

    def kill_a_leader(self, cluster: Cluster, orders: Orders) -> None:
        stage = self.stage
        # Spark commits its progress to a consumer group. The first commit creates the topic of all
        # groups, on three brokers: not while one of them is away.
        cluster.wait_leader(OFFSETS, timeout_s=PATIENCE_S)
        victim = cluster.wait_leader(TOPIC, 0)
        stage.act(f"Broker {victim} is killed")
        orders.go_on()
        already = orders.acknowledged
        while orders.acknowledged < already + self.events // 50 and not orders.failed:
            time.sleep(0.01)
        stage.say(
            f"It leads partition 0, and orders are in flight to it "
            f"({orders.acknowledged:,} are acknowledged so far). What follows is a kill -9: its "
            "connections are reset, and nothing is cleaned up."
        )
        before = cluster.replicas(TOPIC, 0)[victim]
        began_s = time.monotonic()
        cluster.kill(victim)
        successor = self.wait_for_successor(cluster, victim)
        took_ms = (time.monotonic() - began_s) * 1000
        after = cluster.replicas(TOPIC, 0)[successor]
        self.show_partitions(cluster)
        stage.check(successor != victim, f"broker {successor} leads after {took_ms:.0f} ms")
        stage.check(
            after.leader_epoch > before.leader_epoch,
            f"the leader epoch went from {before.leader_epoch} to {after.leader_epoch}",
        )
        stage.check(victim not in (after.isr or ()), f"broker {victim} is out of the in-sync set")
        stage.say(f"A moment later broker {victim} is started again, and catches up.")
        cluster.restart(victim)
        cluster.wait_until_healthy()
        self.show_partitions(cluster)
        stage.check(True, "all replicas are in sync again")

    def wait_for_successor(self, cluster: Cluster, victim: int) -> int:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            leader = cluster.wait_leader(TOPIC, 0)
            if leader != victim:
                return leader
            time.sleep(0.01)
        raise CheckFailed("no other broker has taken over")

    def finish(self, orders: Orders, pipeline: Pipeline) -> None:
        stage = self.stage
        stage.act("The rest")
        self.wait(
            "all orders are acknowledged",
            lambda: orders.is_done,
            lambda: f"{orders.acknowledged:,} of {self.events:,} orders acknowledged",
            pipeline,
        )
        stage.check(
            orders.acknowledged == self.events and not orders.failed,
            f"all {self.events:,} orders are acknowledged, none failed",
        )
        self.wait(
            "the table has them all",
            lambda: pipeline.rows() >= self.events,
            lambda: f"{pipeline.rows():,} of {self.events:,} rows in the table",
            pipeline,
        )
        self.wait(
            "the pipeline's group has no lag",
            lambda: pipeline.describe_group()[1] == 0,
            lambda: "the last batch is committed",
            pipeline,
        )
        stage.say(
            "The pipeline commits its progress as a consumer group, so any lag tool shows it:"
        )
        stage.quote(["$ suwi groups describe orders", *pipeline.describe_group()[0].splitlines()])
        stage.check(pipeline.stop() == 0, "the pipeline stopped cleanly on SIGTERM")

    def compare(self, cluster: Cluster) -> None:
        stage = self.stage
        stage.act("No more, no less")
        ids = read_ids(self.work / "table")
        stage.check(
            sorted(ids) == list(range(self.events)),
            f"the table holds exactly the {self.events:,} orders that were sent, each once",
        )
        ends = [
            {state.log_end for state in cluster.replicas(TOPIC, index).values()}
            for index in range(PARTITIONS)
        ]
        stage.check(
            all(len(end) == 1 for end in ends) and sum(map(sum, ends)) == self.events,
            "every replica of every partition ends at the same offset, and none has a duplicate",
        )

    def look_ahead(self) -> None:
        stage = self.stage
        stage.act("Where to go from here")
        stage.table(
            [
                (".venv/bin/suwi serve --brokers 3", "the same cluster, until you stop it"),
                (
                    ".venv/bin/suwi topics describe --replicas",
                    "watermarks, epochs and in-sync sets",
                ),
                (
                    ".venv/bin/suwi pipeline check orders.yaml",
                    "a pipeline of your own; docs/pipeline.md",
                ),
                ("make tour", "one broker in detail: its files, a crash, a recovery"),
                ("docs/testing.md", "this cluster as a fixture in your own tests"),
                ("docs/replication.md", "what happened when the broker was killed, and why"),
            ]
        )
        took_s = time.monotonic() - self.began_s
        stage.say(f"{stage.checks} checks passed in {took_s:.0f} s.")

    def look_around(self, cluster: Cluster) -> None:
        """The console on this cluster, until Enter; without a terminal there is nobody to look."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return
        stage = self.stage
        stage.act("Look around")
        with open_console(cluster.bootstrap_servers) as address:
            if address is None:
                stage.say("The pages of the console are not built; see `make setup`.")
                return
            stage.say("The cluster still runs. The console shows it in a web browser:")
            stage.quote([address])
            stage.say("Press Enter to stop.")
            input()

    # -- helpers ---------------------------------------------------------------------------------

    def wait(
        self,
        what: str,
        is_so: Callable[[], bool],
        progress: Callable[[], str],
        pipeline: Pipeline,
    ) -> None:
        """Wait for something, and show the progress."""
        deadline_s = time.monotonic() + PATIENCE_S
        with self.stage.progress() as tell:
            while not is_so():
                if not pipeline.is_running:
                    raise CheckFailed(f"the pipeline ended: {pipeline.last_words()}")
                if time.monotonic() > deadline_s:
                    raise CheckFailed(f"not within {PATIENCE_S} s: {what}")
                tell(progress())
                time.sleep(0.25)

    def show_partitions(self, cluster: Cluster) -> None:
        rows = [("partition", "leader", "epoch", "in sync", "ends at (each broker)")]
        for index in range(PARTITIONS):
            leader = cluster.wait_leader(TOPIC, index)
            states = cluster.replicas(TOPIC, index)
            if leader in states:
                rows.append(_row(index, states[leader], states))
        self.stage.table(rows, numbers=(0, 1, 2))


def _row(
    index: int, leader: ReplicaState, states: dict[int, ReplicaState]
) -> tuple[str, str, str, str, str]:
    ends = "  ".join(f"{node}: {state.log_end:,}" for node, state in sorted(states.items()))
    in_sync = ", ".join(str(node) for node in sorted(leader.isr or ()))
    return str(index), str(leader.node), str(leader.leader_epoch), in_sync, ends


def main() -> int:
    parser = argparse.ArgumentParser(description="Events, three brokers, Spark, a table, a crash.")
    parser.add_argument("--keep", action="store_true", help="keep the table and say where it is")
    parser.add_argument("--events", type=int, default=EVENTS, help="how many orders to send")
    options = parser.parse_args()
    stage = Stage()
    work = Path(tempfile.mkdtemp(prefix="suwi-demo-"))
    try:
        Demo(stage, work, options.events).run()
    except CheckFailed as failure:
        stage.fail(str(failure))
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if options.keep:
            stage.say(f"The table is in {work}/table.")
        else:
            shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
