"""Implementation of `suwi configs`."""

import contextlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from suwi.cli.options import Target
from suwi.cli.output import Failure, document, printable, say, show_each, table
from suwi.cli.session import existing_topic, run
from suwi.client.admin import Admin, ConfigEntry, ConfigSource, Resource, ResourceType
from suwi.client.cluster import Cluster
from suwi.model.config_kinds import did_you_mean

ALL_BROKERS = "all"

_SOURCES = {
    ConfigSource.TOPIC: "topic",
    ConfigSource.BROKER: "broker",
    ConfigSource.ALL_BROKERS: "all brokers",
    ConfigSource.FILE: "at start",
    ConfigSource.DEFAULT: "default",
    ConfigSource.GROUP: "group",
}


def resource(kind: str, name: str) -> Resource:
    if kind == "topic":
        return Resource(ResourceType.TOPIC, name)
    if kind == "group":
        return Resource(ResourceType.GROUP, name)
    if name == ALL_BROKERS:
        return Resource(ResourceType.BROKER, "")
    if not (name.isascii() and name.isdigit()):
        raise typer.BadParameter(
            f"{name!r} is not a broker: give its id, or `all`", param_hint="'NAME'"
        )
    return Resource(ResourceType.BROKER, name)


def describe(
    target: Target, of: Resource, keys: Sequence[str], *, everything: bool, json: bool
) -> None:
    async def work(cluster: Cluster) -> None:
        await _check(cluster, of)
        entries = await Admin(cluster).describe_configs(of, docs=bool(keys) or json)
        entries.sort(key=lambda entry: entry.name)
        if keys:
            entries = _select(entries, keys)
        elif not everything:
            entries = [entry for entry in entries if _is_set(entry, of)]
        if json:
            document([_fields(entry) for entry in entries])
        elif keys:
            show_each(entries, _show)
        elif entries:
            rows = [(entry.name, _value(entry), _source(entry.source)) for entry in entries]
            table(("Key", "Value", "From"), rows)
        else:
            say(f"nothing is set for {_text(of)}; --all shows every key with its default")

    run(target, work)


def alter(
    target: Target, of: Resource, values: Mapping[str, str | None], *, dry_run: bool, json: bool
) -> None:
    async def work(cluster: Cluster) -> None:
        await _check(cluster, of)
        unset = [key for key, value in values.items() if value is None]
        if unset:
            _select(await _all_keys(cluster, of), unset)  # brokers accept any name here
        await Admin(cluster).alter_configs(of, values, validate_only=dry_run)
        if json:
            document({"resource": _text(of), "configs": dict(values), "dry_run": dry_run})
            return
        for key, value in values.items():
            done = f"{key} unset" if value is None else f"{key}={value}"
            say(f"{'would change' if dry_run else 'changed'} {_text(of)}: {printable(done)}")

    run(target, work)


async def _check(cluster: Cluster, of: Resource) -> None:
    if of.type is ResourceType.TOPIC:
        await existing_topic(cluster, of.name)


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


def _text(of: Resource) -> str:
    if of.type is ResourceType.TOPIC:
        return f"topic {of.name}"
    if of.type is ResourceType.GROUP:
        return f"group {of.name}"
    return f"broker {of.name}" if of.name else "all brokers"


def _is_set(entry: ConfigEntry, of: Resource) -> bool:
    if of.type is ResourceType.TOPIC:
        return entry.source == ConfigSource.TOPIC
    if of.type is ResourceType.GROUP:
        return entry.source == ConfigSource.GROUP
    return entry.source != ConfigSource.DEFAULT


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
    return _SOURCES.get(ConfigSource(source), "unknown") if source in _SOURCES else "unknown"


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
