"""Apache Kafka's transactional producer, step by step: `TransactionalProducer.java` in a process.

Every method returns when the step is done, and raises `ToolFailed` if it failed.
"""

import subprocess
from pathlib import Path
from typing import Self

from compat.kafka import ToolFailed, java_command

_SOURCE = str(Path(__file__).with_name("TransactionalProducer.java"))


class JavaProducer:
    def __init__(self, address: str, transactional_id: str, **settings: object) -> None:
        given = [f"{key.replace('_', '.')}={value}" for key, value in settings.items()]
        self._process = subprocess.Popen(
            java_command("256m", _SOURCE, address, transactional_id, *given),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Its open transaction stays open: it is killed."""
        self._process.kill()
        self._process.communicate()

    def begin(self, topic: str, *values: str) -> Self:
        """Begin a transaction and write to partition 0."""
        self._run("begin")
        for value in values:
            self._run("send", topic, value)
        return self

    def init(self) -> Self:
        self._run("init")
        return self

    def offset(self, group: str, topic: str, offset: int) -> Self:
        self._run("offset", group, topic, str(offset))
        return self

    def commit(self) -> None:
        self._run("commit")

    def abort(self) -> None:
        self._run("abort")

    def fence(self, transactional_id: str) -> None:
        """`Admin.fenceProducers`."""
        self._run("fence", transactional_id)

    def _run(self, *words: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if answer != "done":
            raise ToolFailed(f"{' '.join(words)}: {answer}")
