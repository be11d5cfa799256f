"""What the system knows of a process: CPU time and memory."""

import subprocess
import sys
import time
from pathlib import Path

_CPUCLOCK_SCHED = 2


def cpu_s(pid: int) -> float:
    """CPU time of a process, user and system, its threads and those that ended included."""
    if sys.platform == "linux":
        # The kernel's clock of another process: nanoseconds, where /proc counts in ticks of 10 ms.
        return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
    seconds = 0.0
    for part in _ps(pid, "time").split(":"):
        seconds = seconds * 60 + float(part)
    return seconds


def cpu_split_s(pid: int) -> tuple[float, float] | None:
    """User and system time, in ticks; None where the system does not tell them apart."""
    if sys.platform != "linux":
        return None
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / 100, int(fields[12]) / 100


def rss_mb(pid: int) -> float:
    """Resident memory in MB (10^6 bytes)."""
    if sys.platform == "linux":
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024 / 1e6
    return int(_ps(pid, "rss")) * 1024 / 1e6


def _ps(pid: int, field: str) -> str:
    return subprocess.run(
        ["ps", "-o", f"{field}=", "-p", str(pid)], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


class Stopwatch:
    """Wall time, and the CPU time that a server and this process spend meanwhile."""

    def __init__(self, server_pid: int) -> None:
        self._pid = server_pid
        self._server_split = cpu_split_s(server_pid)
        self._server_s = cpu_s(server_pid)
        self._client_s = time.process_time()
        self._wall_s = time.perf_counter()

    def stop(self) -> dict[str, float]:
        wall_s = time.perf_counter() - self._wall_s
        metrics = {
            "wall_s": wall_s,
            "server_cpu_s": cpu_s(self._pid) - self._server_s,
            "client_cpu_s": time.process_time() - self._client_s,
        }
        split = cpu_split_s(self._pid)
        if split is not None and self._server_split is not None:
            user_s, system_s = (a - b for a, b in zip(split, self._server_split, strict=True))
            if user_s + system_s:
                metrics["server_system_share"] = system_s / (user_s + system_s)
        return metrics
