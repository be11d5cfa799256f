"""What the system says about a process: CPU time and memory."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_CPUCLOCK_SCHED = 2
_RESET_PEAK = "5"
_IDLE_PERCENT = 15
_IDLE_LOOK_S = 0.5
_IDLE_S_MAX = 60


def cpu_s(pid: int) -> float:
    """CPU time of a process, user and system, including ended threads."""
    if sys.platform == "linux":
        # The kernel's clock of another process: nanoseconds, while /proc counts in ticks of 10 ms.
        return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
    seconds = 0.0
    for part in _ps(pid, "time").split(":"):
        seconds = seconds * 60 + float(part)
    return seconds


def cpu_split_s(pid: int) -> tuple[float, float]:
    """User and system time, in ticks; zeros if the system does not distinguish them."""
    if sys.platform != "linux":
        return 0, 0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / 100, int(fields[12]) / 100


def rss_mb(pid: int) -> float:
    """Resident memory in MB (10^6 bytes)."""
    if sys.platform == "linux":
        return _status_mb(pid, "VmRSS")
    return int(_ps(pid, "rss")) * 1024 / 1e6


def peak_rss_mb(pid: int) -> float:
    """The maximum since `forget_peak`; on other systems than Linux the current value."""
    if sys.platform == "linux":
        return _status_mb(pid, "VmHWM")
    return rss_mb(pid)


def forget_peak(pid: int) -> None:
    if sys.platform == "linux":
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)


def idle_cpu_percent(pid: int, seconds: float) -> float:
    before_s = cpu_s(pid)
    start = time.perf_counter()
    time.sleep(seconds)
    return (cpu_s(pid) - before_s) / (time.perf_counter() - start) * 100


def wait_until_idle(pid: int) -> None:
    """Wait until a process is idle, for a reasonable time at most."""
    limit = time.monotonic() + _IDLE_S_MAX
    while idle_cpu_percent(pid, _IDLE_LOOK_S) > _IDLE_PERCENT and time.monotonic() < limit:
        pass


def _status_mb(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    raise ProcessLookupError(pid)


def _ps(pid: int, field: str) -> str:
    return subprocess.run(
        ["ps", "-o", f"{field}=", "-p", str(pid)], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


class Stopwatch:
    """Wall time, the CPU time of servers and of the thread that loads them, the servers' memory."""

    def __init__(self, server_pids: Iterable[int]) -> None:
        self._pids = tuple(server_pids)
        for pid in self._pids:
            forget_peak(pid)
        self._server_split = self._split_s()
        self._server_s = self._sum(cpu_s)
        self._client_s = time.thread_time()
        self._wall_s = time.perf_counter()

    def stop(self) -> dict[str, float]:
        wall_s = time.perf_counter() - self._wall_s
        metrics = {
            "wall_s": wall_s,
            "server_cpu_s": self._sum(cpu_s) - self._server_s,
            "client_busy": (time.thread_time() - self._client_s) / wall_s,
            "peak_rss_mb": self._sum(peak_rss_mb),
        }
        user_s, system_s = (
            now - then for now, then in zip(self._split_s(), self._server_split, strict=True)
        )
        if user_s + system_s:
            metrics["server_system_share"] = system_s / (user_s + system_s)
        return metrics

    def _sum(self, measure: Callable[[int], float]) -> float:
        return sum(map(measure, self._pids))

    def _split_s(self) -> tuple[float, float]:
        users, systems = zip(*map(cpu_split_s, self._pids), strict=True)
        return sum(users), sum(systems)
