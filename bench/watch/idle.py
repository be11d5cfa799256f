"""A heartbeat on a loop that has nothing else to do: the machine's share of the lateness."""

import asyncio
import threading
from typing import Any

from bench.watch.commands import obey
from bench.watch.heartbeat import Beats, Heartbeat


class _Recorder:
    def __init__(self) -> None:
        self.beats = Beats()

    def begin(self) -> None:
        self.beats = Beats()

    def end(self) -> dict[str, Any]:
        return self.beats.as_json()


async def _beat(recorder: _Recorder) -> None:
    Heartbeat(asyncio.get_running_loop(), lambda due, late: recorder.beats.add(due, late))
    await asyncio.Event().wait()


def main() -> None:
    recorder = _Recorder()
    beating = threading.Thread(target=lambda: asyncio.run(_beat(recorder)), daemon=True)
    beating.start()
    obey(recorder)


if __name__ == "__main__":
    main()
