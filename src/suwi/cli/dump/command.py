"""Implementation of `suwi dump`: determines the type of each file, and prints the findings."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import typer

from suwi.cli.dump.findings import Damage, Entry, Note
from suwi.cli.dump.indexes import read_offset_index, read_time_index, read_txn_index
from suwi.cli.dump.segments import read_log
from suwi.cli.dump.small_files import (
    read_clean_shutdown,
    read_epochs,
    read_meta_properties,
    read_offsets,
    read_partition_metadata,
    read_snapshot,
)
from suwi.cli.output import Failure, complain, count_text, json_line, say, size_text
from suwi.cli.session import guarded
from suwi.log import names

Findings = Iterator[Entry | Damage | Note]
Reader = Callable[[str], Findings]

# 00000000000000000042.log, also with the suffix of a file that is being deleted or cleaned.
_NAMED_BY_OFFSET = re.compile(
    r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.deleted|\.cleaned|\.swap)?"
)
_CLEANER_OFFSETS = "cleaner-offset-checkpoint"
SMALL_FILES: dict[str, tuple[str, Reader]] = {
    names.LEADER_EPOCHS: ("leader epochs", read_epochs),
    names.PARTITION_METADATA: ("partition metadata", read_partition_metadata),
    names.META_PROPERTIES: ("broker and cluster id", read_meta_properties),
    names.HIGH_WATERMARKS: ("high watermarks", read_offsets),
    names.RECOVERY_POINTS: ("recovery points", read_offsets),
    names.LOG_START_OFFSETS: ("log start offsets", read_offsets),
    _CLEANER_OFFSETS: ("cleaner offsets", read_offsets),
    names.CLEAN_SHUTDOWN: ("clean shutdown marker", read_clean_shutdown),
}


def dump(paths: Sequence[str], *, records: bool, json: bool) -> None:
    def job() -> int:
        damages = failures = 0
        for number, path in enumerate(_files(paths)):
            try:
                os.stat(path)
                described = _reader(path, records)
                if described is None:
                    raise Failure(f"{path}: not a known file of a broker")
                kind, read = described
                if json:
                    damages += _print_json(path, read(path))
                else:
                    if number:
                        say()
                    say(f"{path}: {kind}, {size_text(os.path.getsize(path))}")
                    damages += _print(read(path))
            except OSError as error:
                complain(f"{path}: {error.strerror}")
                failures += 1
            except Failure as failure:
                complain(str(failure))
                failures += 1
        if damages:
            complain(f"found {count_text(damages, 'problem')}")
        return 1 if damages or failures else 0

    raise typer.Exit(guarded(job))


def _files(paths: Sequence[str]) -> Iterator[str]:
    """The files; of a directory the known files in it and in its partition directories."""
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        for name in sorted(os.listdir(path)):
            inside = os.path.join(path, name)
            if os.path.isfile(inside) and _reader(inside, False) is not None:
                yield inside
            elif os.path.isdir(inside) and names.parse_partition_dir_name(name) is not None:
                yield from _files([inside])


def _reader(path: str, records: bool) -> tuple[str, Reader] | None:
    """The type of a file by its name, and its reader."""
    name = os.path.basename(path)
    if name in SMALL_FILES:
        return SMALL_FILES[name]
    found = _NAMED_BY_OFFSET.fullmatch(name)
    if found is None:
        return None
    base_offset = int(found[1])
    match found[2]:
        case names.LOG:
            read: Reader = partial(_read_log, base_offset=base_offset, records=records)
            return f"segment from offset {base_offset}", read
        case names.OFFSET_INDEX:
            return "offset index", partial(read_offset_index, base_offset=base_offset)
        case names.TIME_INDEX:
            return "time index", partial(read_time_index, base_offset=base_offset)
        case names.TXN_INDEX:
            return "aborted transactions", partial(read_txn_index, base_offset=base_offset)
        case _:
            return f"producer state up to offset {base_offset}", read_snapshot


def _read_log(path: str, base_offset: int, records: bool) -> Findings:
    return read_log(path, base_offset, records=records)


def _print(findings: Findings) -> int:
    damages = entries = 0
    for finding in findings:
        match finding:
            case Entry():
                entries += 1
                say(finding.text())
            case Note(text):
                say(f"({text})")
            case Damage(text):
                damages += 1
                say(f"!! {text}")
    if not entries and not damages:
        say("(empty)")
    return damages


def _print_json(path: str, findings: Findings) -> int:
    damages = 0
    for finding in findings:
        match finding:
            case Entry(kind, fields):
                json_line({"file": path, "type": kind, **fields})
            case Note(text):
                json_line({"file": path, "type": "note", "text": text})
            case Damage(text):
                damages += 1
                json_line({"file": path, "type": "damage", "text": text})
    return damages
