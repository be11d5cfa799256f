"""One member of a group in its own process, a real client: it reads, processes, then commits.

`python -m chaos.group_member KIND NAME INSTANCE SERVERS TOPIC GROUP JOURNAL` reads until SIGTERM,
then it leaves. INSTANCE is `-` for a dynamic member. Kinds: `KINDS`.
Invariant: every line of the journal is written with one call before what comes after it, so that a
killed member's journal is whole: a record is noted when it is processed, a commit when it is sent
and when it is acknowledged. Times are the machine's monotonic clock, equal in all processes.
"""

import asyncio
import os
import random
import signal
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

_SESSION_MS = 6_000
_HEARTBEAT_MS = 500
_POLL_S = 0.2
_RECORDS_MAX = 50
_COMMIT_CHANCE = 0.4
"""After each poll: between two commits some records are processed and not committed."""


class MemberJournal:
    """What happened to a member, one line each: time, kind, partition, offset."""

    def __init__(self, path: Path) -> None:
        self.uncommitted: dict[int, int] = {}
        """Of what is owned: the next offset after what was processed."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def revoked(self, partitions: Iterable[int]) -> None:
        """Another member may own them: they are not ours to commit."""
        for partition in partitions:
            self.uncommitted.pop(partition, None)

    def assigned(self, partitions: Iterable[int]) -> None:
        self._note("assigned", ((partition, -1) for partition in partitions))

    def processed(self, offsets: Sequence[tuple[int, int]]) -> None:
        self._note("processed", offsets)
        self.uncommitted |= {partition: offset + 1 for partition, offset in offsets}

    def commits(self, offsets: Mapping[int, int]) -> None:
        self._note("commits", offsets.items())

    def committed(self, offsets: Mapping[int, int]) -> None:
        self._note("committed", offsets.items())

    def _note(self, kind: str, offsets: Iterable[tuple[int, int]]) -> None:
        now_s = time.monotonic()
        lines = [f"{now_s:.6f} {kind} {partition} {offset}\n" for partition, offset in offsets]
        os.write(self._file, "".join(lines).encode())


class Member(ABC):
    """A client's consumer: `poll` gives records in order, and tells the journal of assignments."""

    @abstractmethod
    async def poll(self) -> list[tuple[int, int]]: ...

    @abstractmethod
    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Raises if it is refused."""

    @abstractmethod
    async def close(self) -> None: ...


class Librdkafka(Member):
    def __init__(
        self,
        servers: str,
        topic: str,
        group: str,
        instance: str | None,
        journal: MemberJournal,
        **config: Any,
    ) -> None:
        from confluent_kafka import Consumer

        self._topic = topic
        if instance is not None:
            config["group.instance.id"] = instance
        if config.get("group.protocol") != "consumer":
            config |= {
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": _HEARTBEAT_MS,
            }
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **config,
            }
        )
        self._consumer.subscribe(
            [topic],
            on_assign=lambda _, each: journal.assigned(p.partition for p in each),
            on_revoke=lambda _, each: journal.revoked(p.partition for p in each),
        )

    async def poll(self) -> list[tuple[int, int]]:
        messages = self._consumer.consume(_RECORDS_MAX, _POLL_S)
        return [(each.partition(), each.offset()) for each in messages if each.error() is None]

    async def commit(self, offsets: Mapping[int, int]) -> None:
        from confluent_kafka import TopicPartition

        wanted = [TopicPartition(self._topic, *each) for each in offsets.items()]
        for done in self._consumer.commit(offsets=wanted, asynchronous=False) or ():
            if done.error is not None:
                raise RuntimeError(str(done.error))

    async def close(self) -> None:
        self._consumer.close()


class KafkaPython(Member):
    def __init__(
        self, servers: str, topic: str, group: str, instance: str | None, journal: MemberJournal
    ) -> None:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            import kafka

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                journal.revoked(each.partition for each in revoked)

            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                journal.assigned(each.partition for each in assigned)

        self._topic = topic
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            group_instance_id=instance,
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=_HEARTBEAT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        self._consumer.subscribe([topic], listener=Listener())

    async def poll(self) -> list[tuple[int, int]]:
        polled = self._consumer.poll(int(_POLL_S * 1000), max_records=_RECORDS_MAX)
        return [(each.partition, each.offset) for records in polled.values() for each in records]

    async def commit(self, offsets: Mapping[int, int]) -> None:
        from kafka.structs import OffsetAndMetadata, TopicPartition

        self._consumer.commit(
            {
                TopicPartition(self._topic, partition): OffsetAndMetadata(offset, "", -1)
                for partition, offset in offsets.items()
            },
            timeout_ms=10_000,
        )

    async def close(self) -> None:
        self._consumer.close()


class Aiokafka(Member):
    def __init__(
        self, servers: str, topic: str, group: str, instance: str | None, journal: MemberJournal
    ) -> None:
        import aiokafka

        class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                journal.revoked(each.partition for each in revoked)

            async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                journal.assigned(each.partition for each in assigned)

        self._topic, self._listener, self._is_started = topic, Listener(), False
        self._consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            group_instance_id=instance,
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=_HEARTBEAT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )

    async def poll(self) -> list[tuple[int, int]]:
        if not self._is_started:
            self._is_started = True
            await self._consumer.start()
            self._consumer.subscribe([self._topic], listener=self._listener)
        polled = await self._consumer.getmany(
            timeout_ms=int(_POLL_S * 1000), max_records=_RECORDS_MAX
        )
        return [(each.partition, each.offset) for records in polled.values() for each in records]

    async def commit(self, offsets: Mapping[int, int]) -> None:
        from aiokafka.structs import TopicPartition

        wanted = {TopicPartition(self._topic, p): offset for p, offset in offsets.items()}
        await self._consumer.commit(wanted)

    async def close(self) -> None:
        if self._is_started:
            await self._consumer.stop()


KINDS: dict[str, tuple[type[Member], dict[str, str]]] = {
    "librdkafka-range": (Librdkafka, {"partition.assignment.strategy": "range"}),
    "librdkafka-cooperative": (
        Librdkafka,
        {"partition.assignment.strategy": "cooperative-sticky"},
    ),
    "librdkafka-consumer": (Librdkafka, {"group.protocol": "consumer"}),
    "kafka-python": (KafkaPython, {}),
    "aiokafka": (Aiokafka, {}),
}


async def _run(member: Member, journal: MemberJournal) -> None:
    leaves = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaves.set)
    try:
        while not leaves.is_set():
            journal.processed(await member.poll())
            if journal.uncommitted and random.random() < _COMMIT_CHANCE:
                offsets, journal.uncommitted = journal.uncommitted, {}
                journal.commits(offsets)
                try:
                    await member.commit(offsets)
                except Exception as error:
                    # Refused, or nobody knows: whoever reads next begins where it is committed.
                    print(f"commit {offsets}: {error!r}", file=sys.stderr, flush=True)
                else:
                    journal.committed(offsets)
            await asyncio.sleep(0.02)
    finally:
        await member.close()


def main() -> None:
    kind, _, instance, servers, topic, group, path = sys.argv[1:]
    client, config = KINDS[kind]
    journal = MemberJournal(Path(path))

    async def run() -> None:
        about = (servers, topic, group, None if instance == "-" else instance, journal)
        await _run(client(*about, **config), journal)  # type: ignore[call-arg]

    asyncio.run(run())


if __name__ == "__main__":
    main()
