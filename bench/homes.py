"""The brokers under comparison: a directory with a broker's data, and how it is started on it.

Both have their default settings, except for the delay before files are deleted: a second instead
of a minute, so that what one run wrote does not affect the next. Kafka's JVM gets the options of
`kafka-server-start`, including a heap of 1 GB.
"""

import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from bench.base_env import base_python
from bench.servers import KAFKA, SUWI, Server, announced_address, end, start, temporary_directory
from compat.kafka import KafkaServer, Unavailable, kafka_classpath

_SETTINGS = {"log.segment.delete.delay.ms": "1000"}
_RUN_SUWI = "from suwi.cli.main import app; app()"


class Home(Protocol):
    """A broker and its data. After `stop` or `kill` it can be started again."""

    @property
    def data(self) -> Path: ...
    def start(self) -> Server:
        """Returns when it accepts connections."""

    def stop(self) -> None: ...
    def kill(self) -> None: ...


H = TypeVar("H", bound=Home)


class SuwiHome:
    """`run`: the code of the broker's program; `options`: more for its command line."""

    def __init__(
        self,
        directory: Path,
        settings: dict[str, str],
        *,
        name: str = SUWI,
        run: str = _RUN_SUWI,
        options: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._name = name
        self._run = run
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    @property
    def data(self) -> Path:
        return self._directory / "data"

    def start(self) -> Server:
        command = [str(base_python()), "-c", self._run, "serve", "--log-level", "warning"]
        command += ["--listen", "127.0.0.1:0", "--data", str(self.data), *self._options]
        for key, value in self._settings.items():
            command += ["--set", f"{key}={value}"]
        self._process = start(command, self._directory)
        return Server(self._name, announced_address(self._process), self._process.pid)

    def stop(self) -> None:
        self._end(at_once=False)

    def kill(self) -> None:
        self._end(at_once=True)

    def _end(self, *, at_once: bool) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            end(process, at_once=at_once)


class KafkaHome:
    """Formatted when it is created: that is not part of a start."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        named = {key.replace(".", "_"): value for key, value in settings.items()}
        self._kafka = KafkaServer(directory, **named)
        self._kafka.format()

    @property
    def data(self) -> Path:
        return self._kafka.data

    def start(self) -> Server:
        self._kafka.start()
        return Server(KAFKA, self._kafka.address, self._kafka.pid)

    def stop(self) -> None:
        self._kafka.stop()

    def kill(self) -> None:
        self._kafka.kill()


MakeHome = Callable[[Path, dict[str, str]], Home]
_KINDS: dict[str, MakeHome] = {SUWI: SuwiHome, KAFKA: KafkaHome}


def enter_version(name: str, source: Path) -> None:
    """Define another broker of this name: Suwi from another source tree."""
    run = f"import sys; sys.path.insert(0, {str(source)!r}); {_RUN_SUWI}"
    _KINDS[name] = partial(SuwiHome, name=name, run=run)


@contextmanager
def home(name: str, **more: str) -> Iterator[Home]:
    """A new home of this broker; its process and its data are removed at the end of the block."""
    with made_home(_KINDS[name], **more) as made:
        yield made


@contextmanager
def made_home(make: Callable[[Path, dict[str, str]], H], **more: str) -> Iterator[H]:
    """The same for a home of any kind."""
    settings = {**_SETTINGS, **{key.replace("_", "."): value for key, value in more.items()}}
    with temporary_directory() as directory:
        made = make(directory, settings)
        try:
            yield made
        finally:
            made.kill()


@contextmanager
def homes(names: Iterable[str], **more: str) -> Iterator[dict[str, Home]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(home(name, **more)) for name in names}


def why_no_kafka() -> str | None:
    """Why Apache Kafka cannot be measured on this machine."""
    try:
        kafka_classpath()
    except Unavailable as missing:
        return str(missing)
    return None
