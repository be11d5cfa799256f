"""The package as a user gets it: the wheel without extras, in an environment with nothing else."""

import os
import re
import signal
import struct
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
WHEELS = Path(sys.prefix) / "wheels"  # kept by `make setup`, so this needs no network

INSTALLED_BYTES_MAX = 40_000_000
API_VERSIONS = 18

needs_cli = pytest.mark.skipif(
    not (ROOT / "src/suwi/cli/main.py").exists(), reason="the command line does not exist yet"
)

IMPORT_ALL = """
import importlib, pkgutil, suwi
for module in pkgutil.walk_packages(suwi.__path__, "suwi."):
    if not module.name.startswith(("suwi.console", "suwi.spark", "suwi.testing.pytest_plugin")):
        importlib.import_module(module.name)
"""


def run(*command: object, cwd: Path) -> str:
    """What the command printed; a failure shows it all."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def clean_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "SUWI_", "KAFKA_"))
    }


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds Suwi's wheel and what it requires."""
    work = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", work, ROOT, cwd=work)
    (wheel,) = work.glob("suwi-*.whl")

    target = work / "empty"
    venv.create(target, with_pip=False, symlinks=True)
    source = ["--no-index", "--find-links", WHEELS] if WHEELS.is_dir() else []
    pip = (sys.executable, "-m", "pip", "--python", target / "bin" / "python")
    run(*pip, "install", *source, "--constraint", ROOT / "requirements.lock", wheel, cwd=work)
    run(*pip, "check", cwd=work)
    return target


@contextmanager
def serving(installed: Path, data: Path) -> Iterator[int]:
    """The port of a broker that runs from the installed package and stops cleanly at the end."""
    broker = subprocess.Popen(
        [installed / "bin" / "suwi", "serve", "--listen", "127.0.0.1:0", "--data", data],
        cwd=installed,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert broker.stdout is not None
    try:
        seen = ""
        while (address := re.search(r"127\.0\.0\.1:([1-9]\d*)", seen)) is None:
            line = broker.stdout.readline()
            assert line, f"the broker ended before it said where it listens:\n{seen}"
            seen += line
        yield int(address[1])
        broker.send_signal(signal.SIGTERM)
        rest, _ = broker.communicate()
        assert broker.returncode == 0, seen + rest
    finally:
        broker.kill()
        broker.wait()
        broker.stdout.close()


def test_base_install_is_light_enough(installed: Path) -> None:
    files = [file for file in installed.glob("lib/python*/site-packages/**/*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= INSTALLED_BYTES_MAX


def test_every_module_imports_without_extras(installed: Path) -> None:
    run(installed / "bin" / "python", "-c", IMPORT_ALL, cwd=installed)


needs_pages = pytest.mark.skipif(
    not (ROOT / "src/suwi/console/static/index.html").exists(), reason="its pages are not built"
)


@needs_pages
def test_the_pages_of_the_console_are_installed(installed: Path) -> None:
    (pages,) = installed.glob("lib/python*/site-packages/suwi/console/static")
    assert {file.suffix for file in pages.rglob("*.*")} >= {".html", ".js", ".css"}


@needs_pages
def test_the_sdist_has_the_pages_of_the_console_and_their_source(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", tmp_path, ROOT, cwd=ROOT)
    (sdist,) = tmp_path.glob("suwi-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    pages = [name for name in names if name.startswith("src/suwi/console/static/")]
    assert {Path(name).suffix for name in pages} >= {".html", ".js", ".css"}
    assert {"console/package-lock.json", "console/src/main.tsx"} <= set(names)
    assert not [name for name in names if "node_modules" in name]


def test_pytest_finds_the_fixtures(installed: Path) -> None:
    (entry_points,) = installed.glob("lib/python*/site-packages/suwi-*.dist-info/entry_points.txt")
    assert "[pytest11]\nsuwi = suwi.testing.pytest_plugin" in entry_points.read_text()


@needs_cli
def test_installed_command_shows_its_help(installed: Path) -> None:
    assert "serve" in run(installed / "bin" / "suwi", "--help", cwd=installed)


@needs_cli
def test_installed_broker_answers_api_versions(installed: Path, tmp_path: Path) -> None:
    request = struct.pack(">hhih", API_VERSIONS, 0, 77, -1)
    with serving(installed, tmp_path) as port, create_connection(("127.0.0.1", port)) as client:
        client.sendall(struct.pack(">i", len(request)) + request)
        with client.makefile("rb") as replies:
            (size,) = struct.unpack(">i", replies.read(4))
            correlation_id, error, api_count = struct.unpack_from(">ihi", replies.read(size))
    assert (correlation_id, error) == (77, 0)
    assert api_count > 0


@needs_cli
def test_installed_broker_keeps_a_record(installed: Path, tmp_path: Path) -> None:
    with serving(installed, tmp_path) as port:
        bootstrap = {"bootstrap.servers": f"127.0.0.1:{port}"}
        producer = Producer(bootstrap)
        producer.produce("water", key=b"level", value=b"high", partition=0)
        assert producer.flush(120) == 0

        consumer = Consumer({**bootstrap, "group.id": "reader", "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition("water", 0, 0)])
            message = consumer.poll(120)
        finally:
            consumer.close()
    assert message is not None
    assert message.error() is None
    assert (message.key(), message.value(), message.offset()) == (b"level", b"high", 0)
