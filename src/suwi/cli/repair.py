"""Implementation of `suwi repair`, for the files of a stopped broker."""

import os

import typer

from suwi.cli.output import Failure, say
from suwi.cli.session import guarded
from suwi.env import AlreadyLocked, Disk, local_env
from suwi.log import names
from suwi.log.checkpoints import parse_topic_id, read_topic_id, topic_id_text, write_topic_id
from suwi.model.ids import TopicId


def repair_partition_metadata(directory: str, topic_id: str) -> None:
    wanted = parse_topic_id(topic_id)
    if wanted is None:
        raise typer.BadParameter(
            f"{topic_id!r} is not a topic id: 22 characters of base 64", param_hint="--topic-id"
        )

    def job() -> None:
        _repair(local_env().disk, os.path.abspath(directory), wanted)

    raise typer.Exit(guarded(job))


def _repair(disk: Disk, directory: str, wanted: TopicId) -> None:
    data, name = os.path.split(directory)
    is_partition = names.parse_partition_dir_name(name) is not None and disk.is_dir(directory)
    if not is_partition or not disk.exists(f"{data}/{names.META_PROPERTIES}"):
        raise Failure(f"{directory} is not a partition in a broker's data directory")
    try:
        lock = disk.lock(f"{data}/{names.LOCK}")
    except AlreadyLocked:
        raise Failure(f"{data} is in use by a broker: stop it first") from None
    try:
        path = f"{directory}/{names.PARTITION_METADATA}"
        found = read_topic_id(disk, path)
        if found is not None and found != wanted:
            raise Failure(f"{directory} belongs to the topic {topic_id_text(found)}: unchanged")
        write_topic_id(disk, path, wanted, sync=True)
    finally:
        lock.release()
    say(f"{directory} belongs to the topic {topic_id_text(wanted)}")
