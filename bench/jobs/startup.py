"""From the start of a process on an empty directory to the first acknowledged produce."""

import re
import subprocess
import time
from pathlib import Path

from bench.base_env import base_python, clean_environment
from bench.clients import Metrics
from bench.clients.sockets import Wire
from bench.measure import Figure, take_turns
from bench.messages import PRODUCE_VERSION, batch_of, frame, produce_request
from bench.plan import Plan
from bench.processes import cpu_s, rss_mb
from bench.servers import SUWI, end, suwi_command, temporary_directory
from suwi.wire.codec import encode_request
from suwi.wire.headers import read_response_header, request_header
from suwi.wire.produce import decode_produce_response
from suwi.wire.versions import ApiKey

JOB = "start to first acknowledged produce"
_METADATA_VERSION = 9
_TOPIC = "first"
_IMPORTS = "import suwi.cli.main, suwi.cli.serve"


def measure(plan: Plan) -> list[Figure]:
    return take_turns(JOB, {SUWI: _start_once}, plan.startups)


def _start_once() -> Metrics:
    bare_ms = _run_ms("pass")
    imports_ms = _run_ms(_IMPORTS) - bare_ms
    metadata = request_header(ApiKey.METADATA, _METADATA_VERSION, 1, "bench") + encode_request(
        ApiKey.METADATA,
        _METADATA_VERSION,
        {
            "topics": [{"name": _TOPIC}],
            "allow_auto_topic_creation": True,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        },
    )
    produce = produce_request(_TOPIC, batch_of(1024)[0], -1)
    with temporary_directory() as directory:
        start = time.perf_counter()
        process = subprocess.Popen(
            suwi_command(directory / "data"),
            cwd=directory,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            address = _listening(process)
            listening = time.perf_counter()
            idle_mb = rss_mb(process.pid)
            with Wire(address) as wire:
                _produce_until_acknowledged(wire, frame(metadata), produce)
            acknowledged = time.perf_counter()
            server_cpu_s = cpu_s(process.pid)
        finally:
            end(process)
    return {
        "first_ack_ms": (acknowledged - start) * 1000,
        "listening_ms": (listening - start) * 1000,
        "listening_to_ack_ms": (acknowledged - listening) * 1000,
        "bare_interpreter_ms": bare_ms,
        "imports_ms": imports_ms,
        "cpu_ms": server_cpu_s * 1000,
        "rss_idle_mb": idle_mb,
    }


def _run_ms(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([base_python(), "-c", code], env=clean_environment(), cwd="/", check=True)
    return (time.perf_counter() - start) * 1000


def _listening(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"127\.0\.0\.1:[1-9]\d*", line):
            return found[0]
    raise RuntimeError("the broker ended before it listened")


def _produce_until_acknowledged(wire: Wire, metadata: bytes, produce: bytes) -> None:
    """As a client does: metadata, which creates the topic, until a produce is accepted."""
    for _ in range(100):
        wire.ask(metadata)
        reply = wire.ask(produce)
        _, body_at = read_response_header(ApiKey.PRODUCE, PRODUCE_VERSION, reply)
        answer = decode_produce_response(PRODUCE_VERSION, reply, body_at).topics[0].partitions[0]
        if answer.error_code == 0:
            return
        time.sleep(0.001)
    raise RuntimeError("no produce was acknowledged")


def import_profile(lines: int = 25) -> list[tuple[float, str]]:
    """The modules whose own import takes longest, in ms."""
    done = subprocess.run(
        [base_python(), "-X", "importtime", "-c", _IMPORTS],
        env=clean_environment(),
        cwd=Path("/"),
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", done.stderr)
    return sorted(((int(us) / 1000, name) for us, name in found), reverse=True)[:lines]
