"""`suwi repair`, for the files of a stopped broker."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from suwi.admin.failure import Failure
from suwi.cli.output import say
from suwi.cli.session import local_command
from suwi.env import AlreadyLocked, Disk, local_env
from suwi.log import names
from suwi.log.checkpoints import parse_topic_id, read_topic_id, topic_id_text, write_topic_id
from suwi.log.log_repair import log_repairs
from suwi.model.ids import TopicPartition

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

_Directory = Annotated[
    str, typer.Argument(metavar="DIR", help="A partition's directory, such as data/orders-0.")
]


@app.command("partition-metadata")
@local_command
def partition_metadata(
    directory: _Directory,
    topic_id: Annotated[
        str,
        typer.Option(
            metavar="ID", help="The topic's id, as the broker and `suwi topics describe` print it."
        ),
    ],
) -> None:
    """Set the topic of a partition whose partition.metadata is unreadable.

    A broker keeps such a partition offline, because the records may belong to a deleted topic of
    the same name. Inspect them with `suwi dump` first.
    """
    wanted = parse_topic_id(topic_id)
    if wanted is None:
        raise typer.BadParameter(
            f"{topic_id!r} is not a topic id: 22 characters of base 64", param_hint="--topic-id"
        )
    disk, directory = local_env().disk, os.path.abspath(directory)
    with _locked(disk, directory):
        path = f"{directory}/{names.PARTITION_METADATA}"
        found = read_topic_id(disk, path)
        if found is not None and found != wanted:
            raise Failure(f"{directory} belongs to the topic {topic_id_text(found)}: unchanged")
        write_topic_id(disk, path, wanted, sync=True)
    say(f"{directory} belongs to the topic {topic_id_text(wanted)}")


@app.command("segments")
@local_command
def segments(
    directory: _Directory,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Give up the damaged records. They cannot come back.")
    ] = False,
) -> int:
    """Find damaged and missing records of a partition, or give them up.

    Not needed while another broker has an in-sync replica: a broker that starts replaces its
    damaged replica. Otherwise fetches of the damaged offsets fail until they are given up; from
    then on consumers skip them. All other records stay, with their offsets.
    """
    disk, directory = local_env().disk, os.path.abspath(directory)
    with _locked(disk, directory) as partition:
        repair = log_repairs(disk, os.path.dirname(directory))(partition)
        damages = repair.find()
        for damage in damages:
            size_bytes = damage.end_position - damage.position
            say(
                f"{partition} {damage}: {damage.end - damage.first} offsets, {size_bytes} bytes "
                f"of {damage.path}: {damage.reason}"
            )
        if not damages:
            say(f"{partition} has no damaged records")
        elif not give_up:
            say("nothing was changed; --give-up gives these records up, and consumers skip them")
            return 1
        else:
            repair.give_up(damages)
            offsets = sum(damage.end - damage.first for damage in damages)
            say(f"{partition}: {offsets} offsets were given up")
    return 0


@contextmanager
def _locked(disk: Disk, directory: str) -> Iterator[TopicPartition]:
    """The partition of a directory, whose broker is not running."""
    data, name = os.path.split(directory)
    partition = names.parse_partition_dir_name(name)
    is_partition = partition is not None and disk.is_dir(directory)
    if not is_partition or not disk.exists(f"{data}/{names.META_PROPERTIES}"):
        raise Failure(f"{directory} is not a partition in a broker's data directory")
    assert partition is not None
    try:
        lock = disk.lock(f"{data}/{names.LOCK}")
    except AlreadyLocked:
        raise Failure(f"{data} is in use by a broker: stop it first") from None
    try:
        yield partition
    finally:
        lock.release()
