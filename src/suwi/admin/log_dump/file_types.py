"""Determines the type of a file in a data directory by its name."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from suwi.admin.log_dump.findings import Findings
from suwi.admin.log_dump.indexes import read_offset_index, read_time_index, read_txn_index
from suwi.admin.log_dump.segments import read_log
from suwi.admin.log_dump.small_files import (
    read_clean_shutdown,
    read_epochs,
    read_meta_properties,
    read_offsets,
    read_partition_metadata,
    read_snapshot,
)
from suwi.log import names

Reader = Callable[[str], Findings]

# 00000000000000000042.log, also with the suffix of a file that is being deleted or cleaned.
_NAMED_BY_OFFSET = re.compile(
    r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.deleted|\.cleaned|\.swap)?"
)
SMALL_FILES: dict[str, tuple[str, Reader]] = {
    names.LEADER_EPOCHS: ("leader epochs", read_epochs),
    names.PARTITION_METADATA: ("partition metadata", read_partition_metadata),
    names.META_PROPERTIES: ("broker and cluster id", read_meta_properties),
    names.HIGH_WATERMARKS: ("high watermarks", read_offsets),
    names.RECOVERY_POINTS: ("recovery points", read_offsets),
    names.LOG_START_OFFSETS: ("log start offsets", read_offsets),
    names.CLEANER_OFFSETS: ("cleaner offsets", read_offsets),
    names.CLEAN_SHUTDOWN: ("clean shutdown marker", read_clean_shutdown),
}


def files_in(paths: Sequence[str]) -> Iterator[str]:
    """The files; of a directory the known files in it and in its partition directories."""
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        for name in sorted(os.listdir(path)):
            inside = os.path.join(path, name)
            if os.path.isfile(inside) and reader_of(inside, False) is not None:
                yield inside
            elif os.path.isdir(inside) and names.parse_partition_dir_name(name) is not None:
                yield from files_in([inside])


def reader_of(path: str, records: bool) -> tuple[str, Reader] | None:
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
            read: Reader = partial(read_log, base_offset=base_offset, records=records)
            return f"segment from offset {base_offset}", read
        case names.OFFSET_INDEX:
            return "offset index", partial(read_offset_index, base_offset=base_offset)
        case names.TIME_INDEX:
            return "time index", partial(read_time_index, base_offset=base_offset)
        case names.TXN_INDEX:
            return "aborted transactions", partial(read_txn_index, base_offset=base_offset)
        case _:
            return f"producer state up to offset {base_offset}", read_snapshot
