"""`python -m simulation`: runs of simulated clusters, one after the other, each from a seed.

    python -m simulation --seeds 200            seeds 0 to 199
    python -m simulation --minutes 60 --jobs 2  as many as fit into an hour, on two cores
    python -m simulation --seed 4711            one run; if it fails, with its faults
    python -m simulation --seed 4711 --record run.jsonl   the same, as a recording of the lab
    python -m simulation --seed 4 --mutant NAME --record run.jsonl --beside right.jsonl
                                                a known bug, and the same run without it
    python -m simulation --mutants              how many seeds it takes to catch each known bug
    python -m simulation --seeds 2000 --pairs docs/simulation.md   which mechanisms met, as a table

A run that fails is reported with the command that repeats it, and the exit code is 1.
"""

import argparse
import importlib
import logging
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path  # noqa: TID251 - a page of the documentation
from typing import Any

from simulation.one_seed import MUTANTS, Failure, try_seed
from simulation.pair_table import PairTable
from simulation.seeded_run import Run
from suwi.lab.events import Recording, write

_CHUNK = 4
_MUTANT_SEEDS_MAX = 2000


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _run_one(options)
    if options.mutants:
        return _run_mutants(options)
    return _run_many(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulation", description="Simulated clusters.")
    parser.add_argument("--seed", type=int, help="one run, in detail")
    parser.add_argument("--seeds", type=int, help="how many runs; without end if not given")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--minutes", type=float, help="stop after this much real time")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--trouble", type=float, help="for how many seconds faults are injected")
    parser.add_argument("--mutant", help=f"a bug of {MUTANTS} to inject; the run is to fail")
    parser.add_argument("--mutants", action="store_true", help="all mutants, with a table")
    parser.add_argument("--pairs", type=Path, help="a page to write the table of pairs into")
    parser.add_argument(
        "--keep-going", action="store_true", help="do not stop at the first failure"
    )
    parser.add_argument("--trace", action="store_true", help="with --seed: also what brokers log")
    parser.add_argument("--record", type=Path, help="with --seed: a file for what happens in it")
    parser.add_argument(
        "--beside", type=Path, help="with --mutant, --record: a file for the run without the bug"
    )
    return parser


def _run_one(options: argparse.Namespace) -> int:
    if options.trace:
        logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(name)s %(message)s")
    record = _writer_to(options.record) if options.record is not None else None
    if options.beside is not None:
        right = _writer_to(options.beside)
        try_seed(options.seed, options.mutant, options.trouble, right, is_planted=False)
    failure = try_seed(options.seed, options.mutant, options.trouble, record)
    if isinstance(failure, Failure):
        if options.record is None:
            _report(failure, options)
        else:
            files = " ".join(str(file) for file in (options.record, options.beside) if file)
            _say(f"{failure.text}to see it: suwi lab show {options.record}")
            _say(f"in a browser: suwi lab serve {files} --open")
        return 1
    _say(str(failure))
    return 0


def _writer_to(path: Path) -> Callable[[Recording], None]:
    def record(recording: Recording) -> None:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(write(recording))

    return record


def _run_many(options: argparse.Namespace) -> int:
    began_s = _now_s()
    end_s = began_s + options.minutes * 60 if options.minutes else None
    runs: list[Run] = []
    failures: list[Failure] = []
    table = PairTable()
    for outcome in _outcomes(options):
        if isinstance(outcome, Failure):
            failures.append(outcome)
            _report(outcome, options)
            if not options.keep_going:
                break
        else:
            runs.append(outcome)
            table.add(outcome.pairs)
            if len(runs) % 100 == 0:
                _say(f"{len(runs)} runs, {len(failures)} failed, {_rate(runs, began_s)}")
        if end_s is not None and _now_s() >= end_s:
            break
    _say(_summary(runs, failures, began_s))
    _say(table.summary())
    if options.pairs is not None:
        table.write(options.pairs)
    return 1 if failures else 0


def _run_mutants(options: argparse.Namespace) -> int:
    """A mutant is caught by the first run that fails with it."""
    module: Any = importlib.import_module(MUTANTS)
    options.seeds = options.seeds or _MUTANT_SEEDS_MAX
    missed = 0
    _say(f"{'hazard':>6}  {'mutant':28} {'seeds':>5}  caught by")
    for mutant in sorted(module.MUTANTS, key=lambda mutant: mutant.hazard):
        options.mutant = mutant.name
        tried, failure = 0, None
        for outcome in _outcomes(options):
            tried += 1
            if isinstance(outcome, Failure):
                failure = outcome
                break
        missed += failure is None
        reason = failure.error if failure else "nobody"
        hazard = mutant.hazard if mutant.hazard < module.FAULT else "-"
        _say(f"{hazard:>6}  {mutant.name:28} {tried:>5}  {reason[:120]}")
    return 1 if missed else 0


def _outcomes(options: argparse.Namespace) -> Iterator[Run | Failure]:
    seeds: Iterator[int] = count(options.first)
    if options.seeds is not None:
        seeds = islice(seeds, options.seeds)
    jobs = ((seed, options.mutant, options.trouble) for seed in seeds)
    if options.jobs == 1:
        yield from (try_seed(*job) for job in jobs)
        return
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        # In chunks, so that an endless sequence of seeds does not fill the queue.
        while chunk := list(islice(jobs, options.jobs * _CHUNK)):
            yield from pool.starmap(try_seed, chunk, chunksize=1)


def _report(failure: Failure, options: argparse.Namespace) -> None:
    _say(failure.text)
    again = f"--seed {failure.seed}"
    again += f" --mutant {options.mutant}" if options.mutant else ""
    again += f" --trouble {options.trouble:g}" if options.trouble else ""
    _say(f"seed {failure.seed} failed; again: python -m simulation {again}")
    record = f"python -m simulation {again} --record run.jsonl"
    _say(f"to see it: {record}; suwi lab show run.jsonl")
    beside = " --beside right.jsonl" if options.mutant else ""
    files = "run.jsonl right.jsonl" if options.mutant else "run.jsonl"
    _say(f"in a browser: {record}{beside}; suwi lab serve {files} --open")


def _summary(runs: list[Run], failures: list[Failure], began_s: float) -> str:
    return (
        f"{len(runs)} runs passed, {len(failures)} failed; {_rate(runs, began_s)}; "
        f"{sum(run.virtual_s for run in runs) / 3600:.1f} h of virtual time, "
        f"{sum(run.steps for run in runs)} steps, {sum(run.acked for run in runs)} records "
        f"acknowledged, {sum(run.leader_epochs for run in runs)} leader epochs"
    )


def _rate(runs: list[Run], began_s: float) -> str:
    return f"{len(runs) / max(_now_s() - began_s, 1e-9):.2f} seeds/s"


def _now_s() -> float:
    return time.monotonic()  # noqa: TID251 - real time: the duration of the runs


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
