"""Apache Kafka 4.3 from Maven: its command-line tools, its own classes, and its broker.

`kafka_classpath` fetches it once; `Unavailable` says what is missing.
"""

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

KAFKA_VERSION = "4.3.0"
_HERE = Path(__file__).parent
_POM = _HERE / "pom.xml"
_JARS = _HERE.parent / ".kafka"
_TOOL_S = 120
_THREADS_S = 3
_STOP_S = 300
_START_S = 300  # with thousands of partitions
# The options of `kafka-server-start`, beside the heap.
_SERVER_JVM = [
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]


class Unavailable(Exception):
    """Apache Kafka is not available on this machine."""


class ToolFailed(Exception):
    """A tool of Kafka ended with an error; the text is its output."""


def kafka_classpath() -> str:
    """Kafka's jars, fetched by Maven at the first call. Raises `Unavailable`."""
    return fetched_jars(_POM, KAFKA_VERSION, KAFKA_VERSION)


def fetched_jars(pom: Path, version: str, name: str) -> str:
    """The jars that a POM names, fetched into a directory with this name. Raises `Unavailable`."""
    if shutil.which("java") is None:
        raise Unavailable("there is no `java` on the path")
    jars = _JARS / name
    complete = jars / ".complete"
    wanted = pom.read_text()
    if not complete.exists() or complete.read_text() != wanted:
        if shutil.which("mvn") is None:
            raise Unavailable("there is no `mvn` on the path to fetch Apache Kafka with")
        fetched = subprocess.run(
            [
                "mvn",
                "--quiet",
                "--batch-mode",
                f"--file={pom}",
                f"-Dkafka.version={version}",
                f"-DoutputDirectory={jars}",
                "dependency:copy-dependencies",
            ],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if fetched.returncode:
            raise Unavailable(f"Maven could not fetch Apache Kafka:\n{fetched.stdout[-2000:]}")
        complete.write_text(wanted)
    return f"{jars}/*"


def run_java(
    main: str,
    *arguments: str,
    stdin: str = "",
    time_s: float = _TOOL_S,
    heap: str = "256m",
    jars: str | None = None,
) -> str:
    """Run a class (or a single Java source file); returns its output. Raises `ToolFailed`."""
    ended = subprocess.run(
        java_command(heap, main, *arguments, jars=jars),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=time_s,
        check=False,
    )
    if ended.returncode:
        raise ToolFailed(f"{main}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    return ended.stdout + ended.stderr


def java_command(heap: str, main: str, *arguments: str, jars: str | None = None) -> list[str]:
    jvm = [f"-Xmx{heap}", "-XX:TieredStopAtLevel=1"]
    return ["java", *jvm, "-cp", jars or kafka_classpath(), main, *arguments]


class JavaProcess:
    """A class that runs until it is stopped, such as a worker of Kafka Connect."""

    def __init__(self, output: Path, main: str, *arguments: str, heap: str = "256m") -> None:
        self.output = output
        self._command = java_command(heap, main, *arguments)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "JavaProcess":
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def check(self) -> None:
        """Raises `ToolFailed` if it has ended."""
        if self._process is None or self._process.poll() is not None:
            raise ToolFailed(self.output.read_text()[-2000:])

    def stop(self) -> None:
        """One that does not end leaves its threads in its output. Raises `ToolFailed`."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_TOOL_S)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                time.sleep(_THREADS_S)
                raise ToolFailed(f"does not end: see the threads in {self.output}") from None
            finally:
                self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None


class KafkaServer:
    """One broker of Apache Kafka with its own controller (KRaft), default settings otherwise."""

    def __init__(
        self, directory: Path, *, heap: str = "1g", port: int | None = None, **settings: str
    ) -> None:
        self.directory = directory
        self.port = port or free_port()
        self.data = directory / "data"
        self._heap = heap
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._properties = directory / "server.properties"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """By itself."""
        return self._process is not None and self._process.poll() is not None

    def format(self) -> None:
        """Write the configuration and prepare the data directory."""
        self._configure()
        run_java(
            "kafka.tools.StorageTool",
            "format",
            "--cluster-id",
            "4L6g3nShT-eMCtK--X86sw",
            "--config",
            str(self._properties),
        )

    def with_data(self, data: Path, directory: Path) -> "KafkaServer":
        """A server like this one, to be started on a copy of its data."""
        other = KafkaServer(directory, heap=self._heap, **self._settings)
        other.data = data
        other._configure()
        return other

    def _configure(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        controller = free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": "0",
            "controller.quorum.voters": f"0@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **{key.replace("_", "."): value for key, value in self._settings.items()},
        }
        lines = [f"{key}={value}" for key, value in settings.items()]
        self._properties.write_text("\n".join(lines))

    def start(self) -> "KafkaServer":
        """Returns when it accepts connections."""
        self.launch()
        return self.wait()

    def launch(self) -> None:
        """Start the process; one of several controllers serves only when the others run, too."""
        command = ["java", f"-Xmx{self._heap}", f"-Xms{self._heap}", *_SERVER_JVM]
        command += ["-cp", kafka_classpath(), "kafka.Kafka", str(self._properties)]
        with (self.directory / "kafka.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait(self) -> "KafkaServer":
        """Until it accepts connections."""
        assert self._process is not None
        limit = time.monotonic() + _START_S
        while time.monotonic() < limit:
            if self._process.poll() is not None:
                raise ToolFailed((self.directory / "kafka.log").read_text()[-2000:])
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                time.sleep(0.05)
        raise ToolFailed("Apache Kafka did not start in time")

    def terminate(self) -> None:
        """Ask it to end, without waiting."""
        if self._process is not None:
            self._process.terminate()

    def stop(self, limit_s: float = _STOP_S) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(limit_s)
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
