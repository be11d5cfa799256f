"""A broker from its first start over a crash to its clean stop, with the files on its disk.

Run it with `make tour`, or `.venv/bin/python demo/tour.py --keep` to look at the files yourself.
It exits with an error if a claim does not hold.
"""

import argparse
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import disk_tour
from broker import Broker
from confluent_kafka.admin import AdminClient, NewTopic
from messages import (
    HEADERS,
    PARTITIONS,
    TOPIC,
    Gauge,
    Place,
    Reading,
    ends,
    number_of,
    offset_at,
    read_all,
    readings,
)
from stage import CheckFailed, Stage

from suwi.log import names

QUIET_COUNT = 6_000
STORM_COUNT = 6_000
SENT_BEFORE_KILL = 4_000
KILL_AFTER = 1_000
SEGMENT_BYTES = 32_768
WAIT_S = 30
SETTINGS = {
    # Written five times a second instead of every five seconds, so that there is something
    # to show.
    "replica.high.watermark.checkpoint.interval.ms": "200",
}


class Demo:
    def __init__(self, stage: Stage, work: Path) -> None:
        self.stage = stage
        self.broker = Broker(work / "data", SETTINGS)
        self.sent: dict[int, Reading] = {}
        self.acknowledged: dict[int, Place] = {}
        # Timestamps come from the past hours, so that there is something to look up by time.
        self.since_ms = time.time_ns() // 1_000_000 - (QUIET_COUNT + STORM_COUNT) * 500

    def run(self) -> None:
        self.start()
        self.create_topic()
        self.produce()
        self.read_back()
        self.show_data_directory()
        self.show_partition()
        self.show_indexes()
        self.crash()
        self.recover()
        self.stop()
        self.look_ahead()

    def partition(self, index: int) -> Path:
        return self.broker.data / f"{TOPIC}-{index}"

    # -- a broker and its messages -----------------------------------------------------------------

    def start(self) -> None:
        stage, broker = self.stage, self.broker
        stage.act("A broker")
        stage.say(
            "One process. It is given the address (port 0: any free port) and the directory of "
            "its data. The setting makes it checkpoint its watermarks more often, to show them:"
        )
        stage.quote(_command_lines(broker.arguments))
        broker.start()
        stage.say("It prints:")
        stage.quote(broker.greeting)

    def create_topic(self) -> None:
        stage = self.stage
        stage.act("A topic")
        stage.say(
            f"{TOPIC!r} with {PARTITIONS} partitions. Its segments are small ({SEGMENT_BYTES:,} "
            "bytes instead of 1 GiB), so that even a few thousand messages fill several."
        )
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        topic = NewTopic(TOPIC, PARTITIONS, 1, config={"segment.bytes": str(SEGMENT_BYTES)})
        admin.create_topics([topic])[TOPIC].result(WAIT_S)
        known = admin.list_topics(TOPIC, WAIT_S).topics[TOPIC].partitions
        leaders = {partition.leader for partition in known.values()}
        stage.check(len(known) == PARTITIONS and leaders == {0}, "broker 0 leads all partitions")

    def produce(self) -> None:
        stage = self.stage
        stage.act(f"{QUIET_COUNT:,} messages")
        stage.say(
            "Readings of water gauges, sent with confluent-kafka: a key (the station) that chooses "
            "the partition, two headers, a time; batches of at most 50, compressed with zstd, "
            "acks=all, idempotent."
        )
        gauge = Gauge(self.broker.address)
        began = time.monotonic()
        for reading in readings(0, QUIET_COUNT, self.since_ms):
            self.sent[reading.number] = reading
            gauge.send(reading)
        missing = gauge.flush()
        took_s = time.monotonic() - began
        self.acknowledged |= gauge.acknowledged
        stage.check(
            missing == 0 and not gauge.failed and len(self.acknowledged) == QUIET_COUNT,
            f"all {QUIET_COUNT:,} acknowledged, after {took_s:.1f} s",
        )

    def read_back(self) -> None:
        stage = self.stage
        stage.act("Read back")
        stage.say(
            "A consumer reads every partition from offset 0; each message is compared with what "
            "was sent."
        )
        self.check_all_messages()

        partition, offset = self.acknowledged[QUIET_COUNT // 2]
        timestamp_ms = self.sent[QUIET_COUNT // 2].timestamp_ms
        found = offset_at(self.broker.address, partition, timestamp_ms)
        stage.check(
            found == offset,
            f"asked for {disk_tour.clock_time(timestamp_ms)} in partition {partition}, the broker "
            f"finds offset {offset}",
        )

    def check_all_messages(self) -> None:
        """Every sent message is there once, at the acknowledged offset, and nothing else."""
        place_of = {place: number for number, place in self.acknowledged.items()}
        seen: list[int] = []
        wrong = 0
        for message in read_all(self.broker.address, ends(self.broker.address)):
            number = place_of.get(Place(message.partition(), message.offset()), -1)
            sent = self.sent.get(number)
            wrong += sent is None or sent != Reading(
                number, message.key(), message.value(), message.timestamp()[1]
            )
            wrong += message.headers() != HEADERS
            seen.append(number)
        check = self.stage.check
        check(wrong == 0, "keys, values, headers and times are those that were sent")
        check(
            len(seen) == len(set(seen)) == len(self.sent),
            f"all {len(self.sent):,} are there, each once, at the offset that was acknowledged",
        )
        check(self.is_in_order(seen), "in the order in which they were sent, within each partition")

    def is_in_order(self, numbers: Iterable[int]) -> bool:
        newest = dict.fromkeys(range(PARTITIONS), -1)
        for number in numbers:
            partition = self.acknowledged[number].partition
            if number < newest[partition]:
                return False
            newest[partition] = number
        return True

    # -- files on disk -----------------------------------------------------------------------------

    def show_data_directory(self) -> None:
        stage, data = self.stage, self.broker.data
        stage.act("The data directory")
        stage.say("Names and formats are Apache Kafka's, byte for byte:")
        log_ends = ends(self.broker.address)
        _wait_until(lambda: disk_tour.high_watermarks(data) == log_ends)
        rows = list(disk_tour.listing(data, disk_tour.IN_DATA_DIRECTORY))
        rows += [(f"{self.partition(i).name}/", "", f"partition {i}") for i in range(PARTITIONS)]
        stage.table(rows, numbers=[1])
        stage.say(f"{names.HIGH_WATERMARKS}: a version, a count, then topic, partition, offset:")
        lines = (data / names.HIGH_WATERMARKS).read_text().splitlines()
        stage.quote([line for line in lines if not line.startswith("__")])
        stage.check(
            disk_tour.high_watermarks(data) == log_ends,
            "these are the offsets up to which a consumer may read: the water level",
        )

    def show_partition(self) -> None:
        stage = self.stage
        partition = self.partition(0)
        stage.act("A partition")
        logs = disk_tour.segments(partition)
        stage.say(
            f"{TOPIC}-0 is a row of {len(logs)} segments. A segment is named by its first offset; "
            "the last one takes the appends."
        )
        rows = list(disk_tour.listing(partition, disk_tour.IN_PARTITION))
        stage.table(_first_and_last_segment(rows), numbers=[1])
        stage.say(
            "The newest index entries wait in memory: they can always be made again from the .log, "
            "so they are written when a segment is full or the broker stops."
        )
        stage.say(f"{names.LEADER_EPOCHS}: epoch 0 wrote from offset 0 on:")
        stage.quote((partition / names.LEADER_EPOCHS).read_text().splitlines())

        header, records = disk_tour.first_batch(logs[1])
        stage.say(f"The first batch of {logs[1].name}, from its 61-byte header:")
        stage.table(disk_tour.header_rows(header), numbers=[1])
        record = records[0]
        stage.say("and its first record, unpacked:")
        assert record.key is not None
        assert record.value is not None
        stage.quote(
            [f"{record.key.decode()} -> {record.value.decode()}", f"headers {list(record.headers)}"]
        )
        stage.check(
            logs[1].name == f"{header.base_offset:020}{names.LOG}",
            "the segment's name is its first offset",
        )

    def show_indexes(self) -> None:
        stage = self.stage
        log = disk_tour.segments(self.partition(0))[1]
        stage.act("Finding an offset")
        stage.say(f"{log.stem}{names.OFFSET_INDEX} has an entry for about every 4 KiB of log:")
        index = disk_tour.offset_index(log)
        entries = [index.entry(number) for number in range(min(4, len(index)))]
        stage.quote(
            [f"offset: {offset} position: {position}" for offset, position in entries] + ["..."]
        )
        wanted = entries[2][0] + 1
        start = index.look_up(wanted)
        *_, (position, header) = (
            (position, header)
            for position, header, _ in disk_tour.stored_batches(log)
            if position >= start and header.base_offset <= wanted
        )
        stage.say(
            f"To read offset {wanted}: the last entry that is not above it leads to position "
            f"{start}; from there headers are read, up to the batch at {position}, which holds "
            f"offsets {header.base_offset} to {header.last_offset}. The batch goes to the client "
            "as it is, from the page cache to the socket."
        )
        stage.check(header.base_offset <= wanted <= header.last_offset, f"offset {wanted} is found")
        stage.say(
            f"{log.stem}{names.TIME_INDEX}: up to that offset, nothing is newer than that time:"
        )
        times = disk_tour.time_index(log)
        stage.quote(
            f"time: {disk_tour.clock_time(timestamp)} offset: {offset}"
            for timestamp, offset in (times.entry(number) for number in range(min(3, len(times))))
        )

    # -- a crash -----------------------------------------------------------------------------------

    def crash(self) -> None:
        stage, broker = self.stage, self.broker
        stage.act("kill -9, in the middle of producing")
        self.storm = gauge = Gauge(broker.address)
        self.to_send = readings(QUIET_COUNT, STORM_COUNT, self.since_ms)
        for reading in islice(self.to_send, SENT_BEFORE_KILL):
            self.sent[reading.number] = reading
            gauge.send(reading)
        gauge.wait_for(KILL_AFTER)
        stage.quote([f"kill -9 {broker.pid}"])
        broker.kill()
        broker.new_log_lines()
        gauge.take_in_arrived()
        self.before_kill = dict(gauge.acknowledged)
        acknowledged, sent = len(self.before_kill), gauge.sent
        stage.say(
            f"{acknowledged:,} more messages were acknowledged, {sent - acknowledged:,} were on "
            "their way or waiting in the client."
        )
        stored = self.stored_numbers()
        unheard = len(stored - self.acknowledged.keys() - self.before_kill.keys())
        stage.check(
            self.acknowledged.keys() | self.before_kill.keys() <= stored,
            f"the files have {len(stored):,}: all that was acknowledged"
            + (f", and {unheard:,} whose acknowledgement did not arrive" if unheard else ""),
        )
        mark = names.CLEAN_SHUTDOWN
        stage.check(
            not (broker.data / mark).exists(), f"there is no {mark}, so the next start checks"
        )

    def stored_numbers(self) -> set[int]:
        """The messages in the files, read without a broker."""
        return {
            number_of(record.value)
            for index in range(PARTITIONS)
            for record in disk_tour.stored_records(self.partition(index))
        }

    def recover(self) -> None:
        stage, broker = self.stage, self.broker
        stage.act("Recovery")
        lost_index, its_bytes = self.do_damage()
        broker.start()
        stage.say("A start without it checks every batch since the last sync. The broker logs:")
        stage.quote([_without(line, broker.data) for line in _interesting(broker.new_log_lines())])
        stage.quote(broker.greeting[:1])
        stage.check(
            lost_index.read_bytes() == its_bytes, "the deleted index is back, byte for byte"
        )
        stage.say(
            "The client has noticed nothing but a pause: it sends again what was not acknowledged. "
            "What the log has already is recognised by producer and sequence, and not stored twice."
        )
        for reading in self.to_send:
            self.sent[reading.number] = reading
            self.storm.send(reading)
        missing = self.storm.flush()
        stage.check(
            missing == 0 and not self.storm.failed, f"all {len(self.sent):,} are acknowledged now"
        )
        self.acknowledged |= self.storm.acknowledged
        stage.check(
            self.before_kill.items() <= self.storm.acknowledged.items(),
            "what was acknowledged before the kill has kept its offset",
        )
        self.check_all_messages()

    def do_damage(self) -> tuple[Path, bytes]:
        """Damage that a power loss may do and a kill does not; the deleted index and its bytes."""
        first, *_, active = disk_tour.segments(self.partition(0))
        *_, (_, _, batch) = disk_tour.stored_batches(first)
        with active.open("ab") as log:
            log.write(batch[: len(batch) // 2])
        index = first.with_suffix(names.OFFSET_INDEX)
        its_bytes = index.read_bytes()
        index.unlink()
        self.stage.say(
            "A kill loses nothing that was written. More damage, as after a power loss: "
            f"half a batch is added to {TOPIC}-0/{active.name}, and {index.name} is deleted."
        )
        return index, its_bytes

    # -- the end -----------------------------------------------------------------------------------

    def stop(self) -> None:
        stage, broker = self.stage, self.broker
        stage.act("A clean stop")
        stage.say("SIGTERM, as Ctrl-C: no more requests, everything synced, indexes complete.")
        stage.quote(broker.stop().splitlines())
        mark = broker.data / names.CLEAN_SHUTDOWN
        stage.check(
            mark.exists(), f"{names.CLEAN_SHUTDOWN} says that the next start may trust the files:"
        )
        stage.quote([mark.read_text()])
        active = disk_tour.segments(self.partition(0))[-1]
        stage.check(
            active.with_suffix(names.TIME_INDEX).stat().st_size > 0,
            "the active segment's indexes are on disk too",
        )

    def look_ahead(self) -> None:
        stage = self.stage
        stage.act("What next")
        stage.say(f"All {stage.checks} checks hold. To continue:")
        stage.table(
            [
                (".venv/bin/suwi serve", "a broker of your own, on 127.0.0.1:9092"),
                ("README.md", "a producer and a consumer in a few lines"),
                ("make bench", "how fast it is on this machine"),
                ("docs/architecture.md", "how it works inside"),
                ("docs/configuration.md", "every setting"),
                ("docs/unsupported.md", "what it cannot do yet"),
            ]
        )


def _command_lines(arguments: list[str]) -> list[str]:
    """As one would type it, a line for each option."""
    words = shlex.split("suwi " + shlex.join(arguments))
    lines = [" ".join(words[:2])]
    for option, value in zip(words[2::2], words[3::2], strict=True):
        lines.append(f"  {option} {value}")
    return [line + " \\" for line in lines[:-1]] + lines[-1:]


def _first_and_last_segment(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """The rows without the segments in between; what was explained once is not repeated."""
    stems = sorted({name.split(".")[0] for name, _, _ in rows if name.endswith(names.LOG)})
    shown: list[tuple[str, str, str]] = []
    explained: set[str] = set()
    for name, size, purpose in rows:
        stem = name.split(".")[0]
        if stem in stems[1:-1]:
            if shown[-1][0] != "...":
                shown.append(("...", "", ""))
        else:
            shown.append((name, size, purpose if purpose not in explained else ""))
            explained.add(purpose)
    return shown


def _interesting(lines: list[str]) -> list[str]:
    words = ("recover", "cut", "rebuilt", "missing", "damaged", "dropped")
    return [line for line in lines if any(word in line for word in words)]


def _without(line: str, data: Path) -> str:
    return line.replace(f"{data}/", "")


def _wait_until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < give_up_at:
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="do not remove the data at the end")
    keep = parser.parse_args().keep
    stage = Stage()
    work = Path(tempfile.mkdtemp(prefix="suwi-demo-"))
    demo = Demo(stage, work)
    try:
        demo.run()
    except (CheckFailed, RuntimeError) as error:
        stage.fail(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        demo.broker.kill()
        if keep:
            stage.say(f"The data is in {demo.broker.data}, the broker's log beside it.")
        else:
            shutil.rmtree(work)
            stage.say(f"The data was in {demo.broker.data} and is removed; --keep keeps it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
