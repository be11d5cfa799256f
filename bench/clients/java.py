"""Apache Kafka's Java clients: one JVM, kept warm, runs every Java load (`Loads.java`).

Its options are those of `kafka-producer-perf-test`. The result is what a load prints.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.base_env import clean_environment
from bench.clients import Metrics, Options
from compat.kafka import kafka_classpath

CONSUME, LATENCY, TRANSACTIONS = "Loads$Consume", "Loads$Latency", "Loads$Transactions"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
METADATA_QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
_SOURCE = Path(__file__).parent / "Loads.java"
_ENDED = "@ended "
_STOP_S_MAX = 10


class JavaClient:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, main: str, *arguments: str) -> tuple[int, str]:
        """Run a class to its end; returns its exit code and its output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join([main, *arguments]) + "\n")
        self._process.stdin.flush()
        printed: list[str] = []
        for line in self._process.stdout:
            if line.startswith(_ENDED):
                return int(line.removeprefix(_ENDED)), "".join(printed)
            printed.append(line)
        raise RuntimeError(f"the JVM of {main} ended: {''.join(printed)[-2000:]}")

    def produce(
        self, address: str, topic: str, records: int, warm_up: int, payload: Path, *settings: str
    ) -> Metrics:
        """`kafka-producer-perf-test`: rates and latencies after the first `warm_up` records."""
        arguments = ["--bootstrap-server", address, "--topic", topic, "--throughput", "-1"]
        arguments += ["--num-records", str(warm_up + records), "--warmup-records", str(warm_up)]
        arguments += ["--payload-file", str(payload)]
        if settings:
            arguments += ["--command-property", *settings]
        code, text = self.run(PRODUCER_PERFORMANCE, *arguments)
        found = re.search(
            r"steady state records sent, ([\d.]+) records/sec.* (\d+) ms 50th.* (\d+) ms 99th", text
        )
        if code or not found:
            raise RuntimeError(f"ProducerPerformance ended with {code}: {text[-2000:]}")
        return {
            "records_per_s": float(found[1]),
            "ack_p50_ms": float(found[2]),
            "ack_p99_ms": float(found[3]),
        }

    def consume(self, address: str, topic: str, records: int, times: int) -> Metrics:
        """A consumer with `assign`, as groups are not served yet."""
        code, text = self.run(CONSUME, address, topic, str(records), str(times))
        if code:
            raise RuntimeError(f"the Java consumer ended with {code}: {text[-2000:]}")
        got, size_bytes, took_ns, cpu_ns = (int(word) for word in text.split()[-4:])
        return {
            "records": got,
            "records_per_s": got / took_ns * 1e9,
            "mb_per_s": size_bytes / took_ns * 1e3,
            "client_busy": cpu_ns / took_ns,
        }

    def latencies_ms(
        self, address: str, topic: str, warm_up: int, records: int, record_bytes: int
    ) -> list[float]:
        arguments = [address, topic, str(warm_up), str(records), str(record_bytes)]
        code, text = self.run(LATENCY, *arguments)
        if code:
            raise RuntimeError(f"the Java latency test ended with {code}: {text[-2000:]}")
        return [int(word) / 1e6 for word in text.splitlines()[-1].split()]

    def transactions(self, options: Options) -> tuple[float, int]:
        """What `bench.clients.librdkafka_transactions` does with these options."""
        keys = ("address", "topic", "partitions", "producers", "size", "record_bytes", "id")
        times = (int(options[key] * 1000) for key in ("warm_up_s", "run_s"))
        code, text = self.run(TRANSACTIONS, *(str(options[k]) for k in keys), *map(str, times))
        if code:
            raise RuntimeError(f"the Java producers ended with {code}: {text[-2000:]}")
        per_s, done = text.splitlines()[-1].split()
        return float(per_s), int(done)

    def finalize(self, address: str, feature: str, level: int) -> None:
        """`kafka-features`: set a feature of the cluster to this level, from above or below."""
        said = ""
        for direction in ("upgrade", "downgrade"):
            wanted = ["--feature", f"{feature}={level}"]
            code, text = self.run(FEATURES, "--bootstrap-server", address, direction, *wanted)
            said += text
            if not code:
                break
        _, described = self.run(FEATURES, "--bootstrap-server", address, "describe")
        if not re.search(rf"{feature}\s.*FinalizedVersionLevel: {level}\b", described):
            raise RuntimeError(f"{feature} cannot be set to {level}: {said[-2000:]}")

    def quorum_leader(self, address: str) -> int:
        """`kafka-metadata-quorum`: the active controller of Apache Kafka."""
        arguments = ["--bootstrap-server", address, "describe", "--status"]
        code, text = self.run(METADATA_QUORUM, *arguments)
        found = re.search(r"LeaderId:\s+(\d+)", text)
        if code or not found:
            raise RuntimeError(f"MetadataQuorumCommand ended with {code}: {text[-2000:]}")
        return int(found[1])


@contextmanager
def java_client() -> Iterator[JavaClient]:
    command = ["java", "-Xmx512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
    process = subprocess.Popen(
        [*command, "-cp", kafka_classpath(), str(_SOURCE)],
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield JavaClient(process)
    finally:
        process.stdin.close()  # then it ends
        try:
            process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
