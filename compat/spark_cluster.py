"""A standalone Spark cluster, a master and workers as processes, and Pythons for it.

`SparkCluster` runs one from the installed PySpark; `make_python` creates an environment
that has everything Suwi needs, but not Suwi.
Invariant: nothing of this test's own process (variables, paths) is visible to the cluster.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parent.parent
_START_S = 120
_STOP_S = 30
_LOOK_EVERY_S = 0.1
_MASTER = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
_REGISTERED = re.compile(r"Registering worker ")


def spark_home() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def clean_environment(*, home: bool = True) -> dict[str, str]:
    """The environment of a machine without this source tree."""
    ours = ("PYTHON", "PYSPARK", "SPARK", "SUWI_", "KAFKA_", "VIRTUAL_ENV", "NUMBA", "PYTEST")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    if not home:
        kept.pop("HOME", None)
        kept.pop("XDG_CACHE_HOME", None)
    return {**kept, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1"}


def without_powers() -> list[str]:
    """A command prefix, so that root, too, cannot write where it is not allowed to."""
    if os.geteuid():
        return []
    setpriv = shutil.which("setpriv")
    return [setpriv, "--bounding-set=-dac_override"] if setpriv else []


class SparkCluster:
    """Workers have one core each, no HOME, and no write access to what is read-only."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> "SparkCluster":
        self._folder.mkdir()
        try:
            self._start("master", "master.Master", "--port", "0", "--webui-port", "0")
            self.master = self._wait_for(_MASTER)[0]
            for number in range(self._workers):
                self._start_worker(f"worker-{number}")
            while len(self._wait_for(_REGISTERED)) < self._workers:
                time.sleep(_LOOK_EVERY_S)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def said(self) -> str:
        """The output of all processes, including executors and their Pythons."""
        files = sorted([*self._folder.glob("*.log"), *self._folder.glob("*/*/*/stderr")])
        return "\n".join(f"-- {file}\n{file.read_text(errors='replace')}" for file in files)

    def _start_worker(self, name: str) -> None:
        work = self._folder / name
        options = ["--cores", "1", "--memory", "1g", "--work-dir", str(work), "--port", "0"]
        self._start(name, "worker.Worker", *options, "--webui-port", "0", self.master)

    def _start(self, name: str, what: str, *options: str) -> None:
        program = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}"]
        environment = clean_environment(home=False) | {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(self._folder / f"{name}-local"),
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*without_powers(), *program, "--host", "127.0.0.1", *options],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)

    def _wait_for(self, words: re.Pattern[str]) -> list[str]:
        """The workers in the master's log, as soon as there are some."""
        end = time.monotonic() + _START_S
        while not (found := words.findall((self._folder / "master.log").read_text())):
            assert all(one.poll() is None for one in self._processes), self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(_LOOK_EVERY_S)
        return found

    def _stop(self) -> None:
        for process in reversed(self._processes):  # Workers end their executors.
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# -- Pythons ---------------------------------------------------------------------------------------


def make_python(folder: Path, wheel: Path | None = None) -> Path:
    """An environment with the dependencies of the one that runs, and Suwi only from a wheel.

    It uses the dependencies in place, without what files in there add to the
    path: Suwi itself, if it is installed in place.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder)}))
    (site / "dependencies.pth").write_text("".join(f"{place}\n" for place in _dependencies()))
    if wheel is not None:
        run(
            *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet"),
            *("--no-deps", "--no-index", "--no-compile", wheel),
        )
    return python


def _dependencies() -> list[Path]:
    names = ("pyspark", "pyarrow", "numba", "deltalake", "yaml", "kio", "cramjam", "typer")
    specs = [find_spec(name) for name in names]
    return sorted({Path(spec.origin).parents[1] for spec in specs if spec and spec.origin})


def build_wheel(folder: Path) -> Path:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("suwi-*.whl")
    return wheel


def run(*command: object, environment: dict[str, str] | None = None) -> str:
    """Its output. A failure shows all of it."""
    ended = subprocess.run(
        [str(word) for word in command],
        cwd="/",
        env=environment or clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout
