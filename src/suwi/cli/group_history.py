"""The work of `suwi groups history`: why a group rebalanced, and for how long who stood still."""

from typing import Any

from suwi.cli.groups import unknown_group
from suwi.cli.options import Target
from suwi.cli.output import document, duration_text, printable, say, table, time_text
from suwi.cli.session import run
from suwi.client.cluster import Cluster
from suwi.client.groups import GroupHistory, group_history

_MOVED = "coordinator moved"


def show(target: Target, group: str, *, limit: int | None, members: bool, json: bool) -> None:
    async def work(cluster: Cluster) -> None:
        history = await group_history(cluster, group)
        if not history.exists and not history.rebalances:
            raise await unknown_group(cluster, group)
        entries = _entries(history)
        entries = entries if limit is None else entries[-limit:]
        if json:
            document({"group": group, "coordinator": history.coordinator, "history": entries})
            return
        if not entries:
            say(f"group {printable(group)} has not rebalanced since broker {history.coordinator}")
            say("coordinates it; histories are kept in memory and lost with the process")
            return
        table(
            "Time Trigger ClientId Host Generation Members Pause StoodStill Reason".split(),
            [_row(entry) for entry in entries],
            numbers="Members Pause StoodStill",
        )
        if members:
            _show_members(entries)

    run(target, work)


def _entries(history: GroupHistory) -> list[dict[str, Any]]:
    """Rebalances and moves of the coordinator, the oldest first."""
    entries = [{"at_ms": rebalance["began_ms"], **rebalance} for rebalance in history.rebalances]
    entries += [
        {"at_ms": move["at_ms"], "trigger": _MOVED, "to_broker": history.coordinator}
        for move in history.moves
    ]
    return sorted(entries, key=lambda entry: int(entry["at_ms"]))


def _row(entry: dict[str, Any]) -> tuple[object, ...]:
    if "to_broker" in entry:
        moved = f"to broker {entry['to_broker']}; no rebalance"
        return (time_text(entry["at_ms"]), _MOVED, *"------", moved)
    pause_ms, still_ms = entry["pause_ms"], entry["stood_still_ms"].values()
    return (
        time_text(entry["at_ms"]),
        entry["trigger"],
        entry["client_id"] or "-",
        entry["host"] or "-",
        f"{entry['from_generation']} -> {_or(entry['to_generation'], '...')}",
        "-" if pause_ms is None else entry["members"],
        "goes on" if pause_ms is None else duration_text(pause_ms),
        duration_text(max(still_ms)) if still_ms else "-",
        entry["reason"] or "-",
    )


def _or(value: object, otherwise: str) -> object:
    return otherwise if value is None else value


def _show_members(entries: list[dict[str, Any]]) -> None:
    rows = [
        (time_text(entry["at_ms"]), member, duration_text(still_ms))
        for entry in entries
        for member, still_ms in entry.get("stood_still_ms", {}).items()
    ]
    if rows:
        say()
        table(("Time", "MemberId", "StoodStill"), rows, numbers="StoodStill")
