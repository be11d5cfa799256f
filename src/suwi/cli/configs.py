"""`suwi configs`."""

import contextlib
import textwrap
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from suwi.admin.failure import Failure
from suwi.admin.text import printable
from suwi.admin.topic_descriptions import existing_topic
from suwi.cli.output import document, say, show_each, table
from suwi.cli.session import DryRun, Json, on_cluster, pairs
from suwi.client.admin import Admin, ConfigEntry, ConfigSource, Resource, ResourceType
from suwi.client.cluster import Cluster
from suwi.model.config_kinds import did_you_mean

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

_ALL_BROKERS = "all"
_SOURCES: Mapping[int, str] = {
    ConfigSource.TOPIC: "topic",
    ConfigSource.BROKER: "broker",
    ConfigSource.ALL_BROKERS: "all brokers",
    ConfigSource.FILE: "at start",
    ConfigSource.DEFAULT: "default",
    ConfigSource.GROUP: "group",
}


class Kind(StrEnum):
    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"


_Kind = Annotated[Kind, typer.Argument(metavar="topic|broker|group", help="The kind of resource.")]
_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A topic's or a group's name, a broker's id, or `all` brokers."
    ),
]


@app.command()
@on_cluster
async def describe(
    cluster: Cluster,
    kind: _Kind,
    name: _Name,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY", help="Only these keys, in detail.")
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="Show every key, including defaults.")
    ] = False,
    json: Json = False,
) -> None:
    """Show settings and their sources.

    \b
    suwi configs describe topic orders --all
    """
    of = await _resource(cluster, kind, name)
    entries = await Admin(cluster).describe_configs(of, docs=bool(keys) or json)
    entries.sort(key=lambda entry: entry.name)
    if keys:
        entries = _select(entries, keys)
    elif not all_:
        entries = [entry for entry in entries if _is_set(entry, kind)]
    if json:
        document([_fields(entry) for entry in entries])
    elif keys:
        show_each(entries, _show)
    elif entries:
        rows = [(entry.name, _value(entry), _source(entry.source)) for entry in entries]
        table(("Key", "Value", "From"), rows)
    else:
        say(f"nothing is set for {_text(kind, name)}; --all shows every key with its default")


@app.command("set")
@on_cluster
async def set_(
    cluster: Cluster,
    kind: _Kind,
    name: _Name,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE", help="New values.")],
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Set keys. The change takes effect at once, without a restart.

    \b
    suwi configs set topic orders retention.ms=86400000
    """
    values: dict[str, str | None] = {**pairs(settings, "KEY=VALUE")}
    of = await _resource(cluster, kind, name)
    await Admin(cluster).alter_configs(of, values, validate_only=dry_run)
    _report(_text(kind, name), values, dry_run=dry_run, json=json)


@app.command()
@on_cluster
async def unset(
    cluster: Cluster,
    kind: _Kind,
    name: _Name,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Names of keys.")],
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Reset keys to their defaults.

    \b
    suwi configs unset topic orders retention.ms
    """
    of = await _resource(cluster, kind, name)
    _select(await _all_keys(cluster, of), keys)  # brokers accept any name here
    values: dict[str, str | None] = dict.fromkeys(keys)
    await Admin(cluster).alter_configs(of, values, validate_only=dry_run)
    _report(_text(kind, name), values, dry_run=dry_run, json=json)


def _report(of: str, values: Mapping[str, str | None], *, dry_run: bool, json: bool) -> None:
    if json:
        document({"resource": of, "configs": values, "dry_run": dry_run})
        return
    for key, value in values.items():
        done = f"{key} unset" if value is None else f"{key}={value}"
        say(f"{'would change' if dry_run else 'changed'} {of}: {printable(done)}")


async def _resource(cluster: Cluster, kind: Kind, name: str) -> Resource:
    if kind is Kind.TOPIC:
        await existing_topic(cluster, name)
        return Resource(ResourceType.TOPIC, name)
    if kind is Kind.GROUP:
        return Resource(ResourceType.GROUP, name)
    if name == _ALL_BROKERS:
        return Resource(ResourceType.BROKER, "")
    if not (name.isascii() and name.isdigit()):
        raise typer.BadParameter(
            f"{name!r} is not a broker: give its id, or `all`", param_hint="'NAME'"
        )
    return Resource(ResourceType.BROKER, name)


async def _all_keys(cluster: Cluster, of: Resource) -> list[ConfigEntry]:
    """All keys that exist; those of brokers from the first one that responds."""
    admin = Admin(cluster)
    if of.type is not ResourceType.BROKER or of.name:
        return await admin.describe_configs(of)
    await cluster.refresh([])
    for node in sorted(cluster.brokers):
        with contextlib.suppress(OSError):
            return await admin.describe_configs(Resource(ResourceType.BROKER, str(node)))
    raise Failure("no broker responds")


def _text(kind: Kind, name: str) -> str:
    is_all = kind is Kind.BROKER and name == _ALL_BROKERS
    return "all brokers" if is_all else f"{kind.value} {name}"


def _is_set(entry: ConfigEntry, kind: Kind) -> bool:
    if kind is Kind.BROKER:
        return entry.source != ConfigSource.DEFAULT
    own = ConfigSource.TOPIC if kind is Kind.TOPIC else ConfigSource.GROUP
    return entry.source == own


def _select(entries: Sequence[ConfigEntry], keys: Sequence[str]) -> list[ConfigEntry]:
    by_name = {entry.name: entry for entry in entries}
    for key in keys:
        if key not in by_name:
            raise Failure(f"there is no key {key!r}{did_you_mean(key, by_name)}")
    return [by_name[key] for key in dict.fromkeys(keys)]


def _value(entry: ConfigEntry) -> str:
    if entry.is_sensitive:
        return "(secret)"
    return "" if entry.value is None else entry.value


def _source(source: int) -> str:
    return _SOURCES.get(source, "unknown")


def _show(entry: ConfigEntry) -> None:
    say(f"{entry.name} = {printable(_value(entry))}")
    for line in textwrap.wrap(entry.doc or "", 76):
        say(f"  {printable(line)}")
    for synonym in entry.synonyms:
        value = "(secret)" if entry.is_sensitive else synonym.value
        say(f"  from {_source(synonym.source)}: {synonym.name}={printable(str(value))}")
    if entry.is_read_only:
        say("  a change needs a restart of the broker")


def _fields(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "key": entry.name,
        "value": entry.value,
        "source": _source(entry.source),
        "is_read_only": entry.is_read_only,
        "is_sensitive": entry.is_sensitive,
        "synonyms": [
            {"key": s.name, "value": s.value, "source": _source(s.source)} for s in entry.synonyms
        ],
        "doc": entry.doc,
    }
