"""One committer: a commit at fixed times, and the time of each from when it was due.

It works between `begin` and `end` (`bench.watch.commands`). Where its coordinator is gone it looks
for the next one at any broker, as a client does; `end` tells when each commit was acknowledged,
too, by the machine's monotonic clock.
"""

import itertools
import json
import select
import sys
import time

from bench import group_messages as messages
from bench.clients.pinger import summary
from bench.clients.sockets import Wire
from bench.watch.commands import answer
from suwi.wire.versions import ApiKey

_RETRY_S = 0.01
_PATIENCE_S = 60


class Committer:
    def __init__(self, addresses: list[str], group: str, topic: str) -> None:
        self._addresses = itertools.cycle(addresses)
        self._group = group
        self._request = messages.commit(group, topic, 1, 42)
        self._wire: Wire | None = None

    def commit(self) -> None:
        """Until it is acknowledged."""
        while True:
            try:
                if self._try():
                    return
            except (OSError, ConnectionError):
                pass
            if self._wire is not None:
                self._wire.socket.close()
                self._wire = None
            time.sleep(_RETRY_S)

    def _try(self) -> bool:
        if self._wire is None:
            with Wire(next(self._addresses)) as any_broker:
                reply = any_broker.ask(messages.find_coordinator(self._group))
            (found,) = messages.read(ApiKey.FIND_COORDINATOR, reply).coordinators
            if found.error_code:
                return False
            self._wire = Wire(f"{found.host}:{found.port}")
            self._wire.socket.settimeout(_PATIENCE_S)
        return messages.commit_error(self._wire.ask(self._request)) == 0


def _has_command() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> None:
    options = json.loads(sys.argv[1])
    committer = Committer(options["addresses"], options["group"], options["topic"])
    committer.commit()
    took_ms: list[float] = []
    acknowledged_s: list[float] = []
    while command := sys.stdin.readline().strip():
        if command != "begin":
            answer({**summary(took_ms), "acknowledged_s": acknowledged_s})
            continue
        answer(None)
        took_ms, acknowledged_s = [], []
        due = time.monotonic()
        while not _has_command():
            due += options["every_s"]
            time.sleep(max(0, due - time.monotonic()))
            committer.commit()
            acknowledged_s.append(time.monotonic())
            took_ms.append((acknowledged_s[-1] - due) * 1000)


if __name__ == "__main__":
    main()
