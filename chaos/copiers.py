"""`make chaos-copiers`: transactional copiers of three clients; they and brokers are killed.

Two copiers of each client are a group that copies what the writers write. They are killed and
paused, and so are the brokers that coordinate their transactions and groups or lead partitions. At
the end every record is copied once, in order, in whole transactions; every group has committed the
end of the source, and no transaction is open. `chaos.cluster --copiers` runs it.
"""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from chaos import copier, copy_checker
from chaos.broker_faults import HEALTHY_S, PARTITIONS, ROOT, SEGMENT_BYTES, TOPIC, Plan, Run
from chaos.copy_checker import CopiesRead
from chaos.faults import Fault, Kind
from chaos.journal import value_with
from chaos.process_cluster import ProcessCluster
from chaos.process_faults import BEYOND_SESSION_S, PROCESS_KINDS
from chaos.readers import Tail
from simulation.history_checker import Violation
from suwi.coordinator.runtime import shard_index

WRITERS = ("librdkafka", "librdkafka-impatient")
COPIES = "copies"
"""Its partitions: those of the first client, then those of the second, …"""
CLIENTS = tuple(copier.KINDS)
_SHARDS = 6
_PER_CLIENT = 2
COPIED_S = 90.0
"""All must be copied within this time after the writers have ended and replicas are in sync."""
SILENCE_S_MAX = 60.0
"""A partition of the copies must not be without a new record for longer."""


@dataclass(slots=True)
class _Process:
    client: str
    transactional_id: str
    running: "subprocess.Popen[bytes]"


@dataclass(slots=True)
class Copiers:
    home: Path
    chance: random.Random
    clients: Sequence[str]
    _processes: list[_Process] = field(default_factory=list)
    _servers: str = ""
    _count: int = 0

    def start(self, servers: str) -> None:
        self._servers = servers
        for client in self.clients:
            for number in range(_PER_CLIENT):
                self._processes.append(self._started(client, f"{client}-{number}"))

    def _started(self, client: str, transactional_id: str) -> _Process:
        self._count += 1
        name = f"copier-{self._count}-{client}"
        about = (client, transactional_id, name, self._servers, TOPIC, COPIES, str(PARTITIONS))
        first = str(self.first_partition(client))
        command = [sys.executable, "-m", "chaos.copier", *about, first]
        with (self.home / f"{name}.log").open("wb") as errors:
            running = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=errors)
        return _Process(client, transactional_id, running)

    def first_partition(self, client: str) -> int:
        """Of a client's partitions in the copies."""
        return self.clients.index(client) * PARTITIONS

    # -- faults ----------------------------------------------------------------------------------

    def choose(self) -> _Process:
        return self.chance.choice(self._processes)

    def kill(self) -> None:
        process = self.choose()
        process.running.kill()
        process.running.communicate()  # Waits, and closes its standard input.

    def replace_killed(self) -> None:
        """Half of them have a new id: the transaction of the killed one has to time out."""
        for number, process in enumerate(self._processes):
            if process.running.poll() == -signal.SIGKILL:
                is_new = self.chance.random() < 0.5
                new_id = f"{process.client}-new-{self._count}"
                transactional_id = new_id if is_new else process.transactional_id
                self._processes[number] = self._started(process.client, transactional_id)

    def pause(self) -> None:
        self.choose().running.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        for process in self._processes:
            process.running.send_signal(signal.SIGCONT)

    # -- the end ---------------------------------------------------------------------------------

    def ended_early(self) -> list[str]:
        return [
            f"copier of {process.client} ended with code {process.running.returncode}"
            for process in self._processes
            if process.running.poll() is not None
        ]

    def dump_stacks(self) -> None:
        """Into their logs."""
        for process in self._processes:
            process.running.send_signal(signal.SIGUSR1)

    def kill_all(self) -> None:
        for process in self._processes:
            process.running.kill()

    def processes(self) -> "list[subprocess.Popen[bytes]]":
        return [process.running for process in self._processes]


class CopierCluster(ProcessCluster):
    """The processes of the cluster and those of the copiers."""

    settings: ClassVar = {
        **ProcessCluster.settings,
        "offsets.topic.num.partitions": str(_SHARDS),
        "transaction.state.log.num.partitions": str(_SHARDS),
    }

    def __init__(self, wanted: Plan, home: Path, port: int, say: Callable[[str], None]) -> None:
        super().__init__(home / "cluster", port, say)
        self.chance = random.Random(wanted.seed)
        self.copiers = Copiers(home, self.chance, wanted.copiers)

    def __exit__(self, *error: object) -> None:
        self.copiers.kill_all()  # Those of a run that was interrupted: they may be paused.
        super().__exit__(*error)

    def kill_copier(self, _broker: int) -> None:
        self.copiers.kill()

    def replace_copier(self, _broker: int) -> None:
        self.copiers.replace_killed()

    def pause_copier(self, _broker: int) -> None:
        self.copiers.pause()

    def resume_copier(self, _broker: int) -> None:
        self.copiers.resume()

    def transaction_coordinator(self) -> int:
        key = self.copiers.choose().transactional_id
        return self._leader("__transaction_state", shard_index(key, _SHARDS))

    def group_coordinator(self) -> int:
        key = self.copiers.choose().client
        return self._leader("__consumer_offsets", shard_index(key, _SHARDS))

    def leader_of_copies(self) -> int:
        return self._leader(COPIES, self.chance.randrange(PARTITIONS * len(self.copiers.clients)))

    def _leader(self, topic: str, partition: int) -> int:
        return self.wait_leader(topic, partition, timeout_s=HEALTHY_S)

    def resume_all(self, _broker: int) -> None:
        for broker in self.brokers:
            self.resume(broker)


def _kill(choose: Callable[[CopierCluster], int]) -> Kind:
    return Kind(
        lambda cluster, _: cluster.kill(choose(cluster)),
        CopierCluster.restart_all,
        (0.1, 3.0),
        has_target=False,
    )


def _pause(choose: Callable[[CopierCluster], int]) -> Kind:
    return Kind(
        lambda cluster, _: cluster.pause(choose(cluster)),
        CopierCluster.resume_all,
        BEYOND_SESSION_S,
        has_target=False,
    )


COPIER_KINDS: dict[str, Kind] = {
    **PROCESS_KINDS,
    "kill of a copier": Kind(
        CopierCluster.kill_copier, CopierCluster.replace_copier, (0.1, 3.0), has_target=False
    ),
    # Longer than its session; sometimes longer than the time-out of its transaction.
    "pause of a copier": Kind(
        CopierCluster.pause_copier, CopierCluster.resume_copier, (7.0, 14.0), has_target=False
    ),
    "kill of a transaction coordinator": _kill(CopierCluster.transaction_coordinator),
    "kill of a group coordinator": _kill(CopierCluster.group_coordinator),
    "kill of a leader of copies": _kill(CopierCluster.leader_of_copies),
    "pause of a transaction coordinator": _pause(CopierCluster.transaction_coordinator),
    "pause of a leader of copies": _pause(CopierCluster.leader_of_copies),
}
COPIER_BAG = (
    *["kill of a copier"] * 5,
    *["kill of a transaction coordinator"] * 4,
    *["kill of a group coordinator"] * 3,
    *["kill of a leader of copies"] * 2,
    "kill",
    "kill of the controller",
    *["pause of a copier"] * 2,
    "pause of a transaction coordinator",
    "pause of a leader of copies",
    "isolation",
    "one-way cut",
    "cut between two brokers",
    "rolling restart",
)


class CopierRun(Run):
    def __init__(
        self, wanted: Plan, cluster: CopierCluster, home: Path, say: Callable[[str], None]
    ) -> None:
        super().__init__(wanted, cluster, home, say)
        self._copiers = cluster.copiers
        self._targets = PARTITIONS * len(wanted.copiers)
        self.report.copiers = wanted.copiers

    def _wait_until_all_work(self, tail: Tail) -> None:
        configs = {"min.insync.replicas": 2, "segment.bytes": SEGMENT_BYTES}
        self._cluster.create_topic(COPIES, self._targets, replication_factor=3, configs=configs)
        self._copiers.start(self._cluster.bootstrap_servers)
        self._beside, self._tail_beside = self._tail_of_copies("the consumer beside the copiers")
        super()._wait_until_all_work(tail)
        super()._wait_until_all_work(self._tail_beside)

    def _tail_of_copies(self, name: str) -> tuple[CopiesRead, Tail]:
        read = CopiesRead(name)
        return read, Tail(self._cluster.bootstrap_servers, COPIES, self._targets, read).start()

    def _disturb(self, faults: Sequence[Fault], tail: Tail) -> None:
        self._tail_beside.start_silence()
        super()._disturb(faults, tail)
        self.report.copies_silence_s = self._tail_beside.longest_silence_s()

    # -- the end -------------------------------------------------------------------------------

    def _check_group(self) -> None:
        self._copiers.resume()
        self._wait_until_copied(self._ends())
        for ended in self._copiers.ended_early():
            self._find(ended)
        silence_s = self.report.copies_silence_s
        if silence_s > SILENCE_S_MAX:
            self._find(f"a partition of the copies had no new record for {silence_s:.0f} s")
        self._end(self._copiers.processes())
        self._check_copies()

    def _wait_until_copied(self, ends: dict[int, int]) -> None:
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap_servers})
        began_s = time.monotonic()
        left = dict.fromkeys(self._copiers.clients, "nothing")
        while left and time.monotonic() - began_s < COPIED_S:
            time.sleep(0.2)
            for client in list(left):
                committed = self._committed(admin, client)
                left[client] = f"{committed} of {ends}"
                if committed == ends:
                    del left[client]
                    took_s = time.monotonic() - began_s
                    self._say(f"{client} has copied everything after {took_s:.1f} s")
        for client, told in left.items():
            self._find(f"stuck: the copiers of {client} have committed {told}")
            self._copiers.dump_stacks()

    def _committed(self, admin: AdminClient, group: str) -> dict[int, int]:
        asked = [ConsumerGroupTopicPartitions(group)]
        futures = admin.list_consumer_group_offsets(asked, require_stable=True)
        try:
            offsets = futures[group].result(10).topic_partitions
        except Exception as error:
            self._say(f"offsets of {group}: {error}")
            return {}
        return {each.partition: each.offset for each in offsets if each.topic == TOPIC}

    def _check_copies(self) -> None:
        """What was read beside the copiers is what is read afterwards, and it is right."""
        final, tail = self._tail_of_copies("the consumer of the copies afterwards")
        ends = self._ends(COPIES, self._targets)
        for each in (self._tail_beside, tail):
            self._read_to(each, ends)
        for partition in range(self._targets):
            if self._beside.records.get(partition) != final.records.get(partition):
                self._find(f"partition {partition} of the copies was read otherwise before")
        source = {p: [*map(value_with, keys)] for p, keys in self._readings[-1].keys.items()}
        for client in self._copiers.clients:
            first = self._copiers.first_partition(client)
            target = final.values(range(first, first + PARTITIONS))
            self.report.copied += sum(map(len, target.values()))
            self.report.transactions += copy_checker.transactions(target)
            for kind, what in copy_checker.violations(source, target):
                self.report.copy_violations.append(Violation(kind, f"{client}: {what}"))

    def _compare_files(self, topic: str = TOPIC, partitions: int = PARTITIONS) -> None:
        super()._compare_files(topic, partitions)
        super()._compare_files(COPIES, self._targets)
