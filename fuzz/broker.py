"""The broker under attack: a separate process, started as a user starts it, and monitored."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Final

# Any of these in the log is a finding. A peer's error is logged at info, in one line.
_ALARMING: Final = re.compile(
    r"Traceback|unexpected error|request failed| error |never retrieved|never awaited"
    r"|Exception in|Exception ignored|Fatal Python|panicked|ResourceWarning"
)
_PEER: Final = re.compile(r"peer=127\.0\.0\.1:(\d+)")
_GREETING: Final = re.compile(r"listening on\s+\w+://127\.0\.0\.1:(\d+)")
_COMMAND: Final = "from suwi.cli.main import app; app()"
_SETTINGS: Final = (
    "auto.create.topics.enable=true",
    "log.retention.check.interval.ms=2000",
    "producer.id.expiration.ms=5000",
    "producer.id.expiration.check.interval.ms=2000",
    "log.segment.delete.delay.ms=1000",
    "log.cleaner.backoff.ms=1000",
)
_START_S = 60.0
_STOP_S = 60.0
_LINES_AFTER_ALARM = 60


class BrokerFailed(Exception):
    """It did not start or stop correctly."""


class BrokerProcess:
    def __init__(self, directory: str, settings: Sequence[str] = ()) -> None:
        self.directory = directory
        self.log_path = os.path.join(directory, "broker.log")
        self.port = 0
        self._settings = (*_SETTINGS, *settings)
        self._process: asyncio.subprocess.Process | None = None
        self._log_read_bytes = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.returncode

    async def start(self) -> None:
        """Raises BrokerFailed."""
        data = os.path.join(self.directory, "data")
        settings = [word for setting in self._settings for word in ("--set", setting)]
        log_fd = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-X", "faulthandler", "-c", _COMMAND, "serve"),
            *("--listen", "127.0.0.1:0", "--metrics-port", "0", "--data", data, *settings),
            stdout=asyncio.subprocess.PIPE,
            stderr=log_fd,
        )
        os.close(log_fd)
        try:
            self.port = await asyncio.wait_for(self._greeted(), _START_S)
        except TimeoutError:
            raise BrokerFailed(f"not listening within {_START_S:.0f} s") from None

    async def _greeted(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            found = _GREETING.search(line.decode())
            if found:
                return int(found[1])
        raise BrokerFailed(f"it ended with code {await self._process.wait()}:\n{self.log_tail()}")

    async def stop(self) -> None:
        """As a service manager does. Raises BrokerFailed."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.wait_for(self._process.wait(), _STOP_S)
        except TimeoutError:
            raise BrokerFailed(f"still running {_STOP_S:.0f} s after SIGTERM") from None
        if code != 0:
            raise BrokerFailed(f"it ended with code {code}:\n{self.log_tail()}")

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def dump_stacks(self) -> None:
        """Make a hanging broker dump its stacks to its log; that ends it."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGABRT)

    def memory_bytes(self) -> int:
        """The resident size; 0 after it has ended."""
        try:
            with open(f"/proc/{self.pid}/statm") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except FileNotFoundError:
            return _memory_bytes_by_ps(self.pid)

    def alarms(self) -> list[tuple[int | None, str]]:
        """New alarming log lines, with the peer's port if they name one."""
        with open(self.log_path, encoding="utf-8", errors="replace", newline="\n") as log:
            log.seek(self._log_read_bytes)
            text = log.read()
            complete = text.rfind("\n") + 1
            self._log_read_bytes += len(text[:complete].encode(errors="replace"))
        found: list[tuple[int | None, str]] = []
        lines = text[:complete].splitlines()
        at = 0
        while at < len(lines):
            if not _ALARMING.search(lines[at]):
                at += 1
                continue
            end = at + 1
            while end < len(lines) and not lines[end][:4].isdigit():  # the next line with a time
                end += 1
            peer = _PEER.search(lines[at])
            excerpt = "\n".join(lines[at : min(end, at + _LINES_AFTER_ALARM)])
            found.append((int(peer[1]) if peer else None, excerpt))
            at = end
        return found

    def log_tail(self) -> str:
        with open(self.log_path, "rb") as log:
            log.seek(max(0, os.path.getsize(self.log_path) - 4096))
            return log.read().decode(errors="replace")


def _memory_bytes_by_ps(pid: int) -> int:
    with os.popen(f"ps -o rss= -p {pid}") as answer:
        return int(answer.read().strip() or 0) * 1024
