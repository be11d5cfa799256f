"""`python -m fuzz`: the command line."""

import argparse
import random
import sys
import tempfile

from fuzz.run import Report, Run, run
from fuzz.simulated import fuzz_simulated


def _fuzz_process(seed: int, options: argparse.Namespace) -> Report:
    async def work(run: Run) -> Report:
        return await (run.replay(options.case) if options.case else run.fuzz(options.seconds))

    with tempfile.TemporaryDirectory(prefix="suwi-fuzz-") as directory:
        return run(
            seed,
            directory,
            work,
            connections=options.connections,
            memory_bytes_max=options.memory_mib << 20,
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long to attack")
    parser.add_argument("--seed", type=int, help="the same seed gives the same cases")
    parser.add_argument("--connections", type=int, default=8, help="hostile peers at once")
    parser.add_argument("--memory-mib", type=int, default=1024, help="memory limit of the broker")
    parser.add_argument("--case", type=int, action="append", help="send only this case; repeatable")
    parser.add_argument("--simulated", action="store_true", help="one process, virtual time")
    parser.add_argument("--cases", type=int, default=10_000, help="how many, with --simulated")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}")

    if options.simulated:
        report = fuzz_simulated(seed, options.cases)
    else:
        report = _fuzz_process(seed, options)
    print("\n".join(report.lines()))
    for number, finding in enumerate(report.findings, 1):
        print(f"\n-- finding {number}: {finding}")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
