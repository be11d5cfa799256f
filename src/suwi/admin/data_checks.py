"""Checks of a data directory, of a stopped or a running broker. They change nothing.

`check_data` runs the functions of the table `_CHECKS`; those of a stopped broker's logs, which read
every batch, are in `log_checks.py`.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from suwi.admin.finding import ERROR, WARNING, Finding
from suwi.admin.log_checks import Tell, check_logs
from suwi.admin.log_dump.file_types import SMALL_FILES
from suwi.admin.log_dump.findings import Damage
from suwi.admin.text import size_text
from suwi.env import AlreadyLocked, Disk, Env
from suwi.log import names
from suwi.log.running_mark import RunningMark

_FREE_MIN = 0.1
_UNFINISHED = (names.CLEANED, names.SWAP, names.DELETED)


class Found(NamedTuple):
    path: str
    env: Env
    entries: tuple[str, ...]
    is_in_use: bool
    tell: Tell

    @property
    def disk(self) -> Disk:
        return self.env.disk

    def at(self, name: str) -> str:
        return f"{self.path}/{name}"

    def warning(self, problem: str, advice: str) -> Finding:
        return Finding(WARNING, self.path, problem, advice)

    def error(self, problem: str, advice: str) -> Finding:
        return Finding(ERROR, self.path, problem, advice)


def check_data(path: str, env: Env, tell: Tell) -> Iterator[Finding]:
    """`tell` gets a line about the progress of a long check."""
    disk = env.disk
    try:
        entries = tuple(sorted(disk.list_dir(path)))
    except OSError as error:
        problem = error.strerror or str(error)
        yield Finding(ERROR, path, problem, "check the path and its permissions")
        return
    found = Found(path, env, entries, _is_in_use(disk, path, entries), tell)
    for check in _CHECKS:
        yield from check(found)


def _is_in_use(disk: Disk, path: str, entries: tuple[str, ...]) -> bool:
    if names.LOCK not in entries:
        return False
    try:
        disk.lock(f"{path}/{names.LOCK}").release()
    except (AlreadyLocked, OSError):
        return True  # OSError: not known; then nothing is said of a broker that was killed
    return False


def _identity(found: Found) -> Iterator[Finding]:
    if names.META_PROPERTIES in found.entries:
        return
    below = [e for e in found.entries if found.disk.exists(found.at(f"{e}/meta.properties"))]
    if below:
        yield found.warning(
            f"no data directory, but it contains some: {', '.join(below)}",
            f"check each one: suwi doctor --data {found.at(below[0])}",
        )
    elif any(map(names.parse_partition_dir_name, found.entries)):
        yield found.error(
            "it holds partitions and no meta.properties: its broker and cluster are unknown",
            "restore the file from a backup, or from another data directory of the same broker "
            "with a directory.id of its own",
        )
    else:
        yield found.warning("no broker has used it yet", "check the path")


def _last_stop(found: Found) -> Iterator[Finding]:
    has_run = names.META_PROPERTIES in found.entries
    if found.is_in_use or not has_run or names.CLEAN_SHUTDOWN in found.entries:
        return
    mark = RunningMark(found.disk, found.path)
    if mark.is_unsynced():
        problem = "syncs failed in the last run: data that can be read may not be on the disk"
        advice = "check the disk; the next start writes the data again"
    elif mark.has_lost_records():
        problem = "damaged records were removed, and no controller knows it yet"
        advice = "start it; it copies from in-sync replicas. Then look at `suwi cluster events`"
    elif mark.is_of_this_boot():
        problem = "the broker was killed: the next start checks the end of each log"
        advice = "nothing is lost; stop brokers with SIGTERM and wait for them"
    else:
        problem = "the machine stopped while the broker ran: records may be missing"
        advice = "start it; it copies from in-sync replicas. Then look at `suwi cluster events`"
    yield found.warning(problem, advice)


def _small_files(found: Found) -> Iterator[Finding]:
    partitions = [e for e in found.entries if names.parse_partition_dir_name(e) is not None]
    for directory in (found.path, *map(found.at, partitions)):
        for name, (kind, read) in SMALL_FILES.items():
            path = f"{directory}/{name}"
            try:
                if not found.disk.exists(path):
                    continue
                damages = [each.text for each in read(path) if isinstance(each, Damage)]
            except OSError as error:
                damages = [error.strerror or str(error)]
            if damages:
                yield Finding(ERROR, path, f"{kind}: {damages[0]}", _remedy(directory, name))


def _remedy(directory: str, name: str) -> str:
    if name == names.PARTITION_METADATA:
        return f"suwi repair partition-metadata {directory} --topic-id ID"
    if name == names.META_PROPERTIES:
        return "restore it from a backup"
    return "stop the broker and remove the file: the next start makes it from the logs"


def _logs(found: Found) -> Iterator[Finding]:
    if not found.is_in_use:  # A running broker scrubs its logs itself.
        yield from check_logs(found.path, found.env, found.tell)


def _leftovers(found: Found) -> Iterator[Finding]:
    strays = [entry for entry in found.entries if entry.endswith(names.STRAY_DIR)]
    if strays:
        yield found.warning(
            f"{len(strays)} directories of unknown topics were set aside: {strays[0]}",
            "look at them with `suwi dump`, then move or remove them; brokers never do",
        )
    if found.is_in_use:
        return  # the rest may be work in progress
    deleted = [entry for entry in found.entries if entry.endswith(names.DELETE_DIR)]
    unfinished = [
        f"{entry}/{name}"
        for entry in found.entries
        if names.parse_partition_dir_name(entry) is not None
        for name in _names_in(found, entry)
        if name.endswith(_UNFINISHED)
    ]
    if deleted or unfinished:
        yield found.warning(
            f"{len(deleted) + len(unfinished)} leftovers of deletion or compaction: "
            f"{(deleted + unfinished)[0]}",
            "nothing to do: the next start finishes or removes them",
        )


def _names_in(found: Found, entry: str) -> list[str]:
    try:
        return found.disk.list_dir(found.at(entry)) if found.disk.is_dir(found.at(entry)) else []
    except OSError:
        return []  # `_logs` reports it.


def _space(found: Found) -> Iterator[Finding]:
    free, total = found.disk.free_bytes(found.path), found.disk.total_bytes(found.path)
    if total and free / total < _FREE_MIN:
        yield found.warning(
            f"only {size_text(free)} of {size_text(total)} are free",
            "extend the volume, or lower retention: suwi configs set topic NAME retention.bytes=…",
        )


def _permissions(found: Found) -> Iterator[Finding]:
    if found.disk.is_open_to_others(found.path):
        yield found.warning(
            "other users can read the data, password hashes included", f"chmod 700 {found.path}"
        )
    if not os.access(found.path, os.W_OK | os.X_OK):
        yield found.error(
            "this user cannot write to it",
            "run the check as the broker's user, or chown the directory to it",
        )


_CHECKS = (_identity, _last_stop, _small_files, _logs, _leftovers, _space, _permissions)
