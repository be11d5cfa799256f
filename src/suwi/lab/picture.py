"""A partition as text: replicas as rows, records as cells, marks for high watermark and log end.

It reads without colours, too: a cell names its epoch, `║` is the high watermark, `│` the other
borders, of which the last is the end of the log.
"""

import re
from itertools import pairwise, zip_longest

from rich.cells import cell_len, set_cell_size

from suwi.lab.events import Replicas, ReplicaView
from suwi.lab.text import Text, by_language

_COLOURS = (36, 33, 35, 32, 34, 31)
"""ANSI colours of epochs, one after the other."""
_VALUE_MAX = 12
_GAP = 3
"""Between pictures."""
_TEXTS = {
    "leader": Text("leader", "리더"),
    "in sync": Text("in sync", "ISR"),
    "behind": Text("behind", "ISR 밖"),
    "down": Text("down", "다운"),
    "none": Text("none", "없음"),
    "epoch": Text("epoch", "리더에포크"),
    "offset": Text("offset", "오프셋"),
    "high watermark": Text("high watermark", "하이워터마크"),
    "end": Text("end of the log", "로그의 끝"),
    "legend": Text(
        "║ high watermark   │ end of the log   e0 leader epoch 0",
        "║ 하이워터마크   │ 로그의 끝   e0 리더에포크 0",
    ),
}
WORDS = by_language(_TEXTS)


def pictures(
    replicas: Replicas,
    width: int,
    *,
    about: str = "",
    colour: bool = False,
    language: str = "en",
) -> list[str]:
    """Those of the partitions that `about` names, or of all that are not internal. Of several only
    those with records are drawn, beside each other if there is room."""
    shown = [each for each in replicas.leaders if re.search(rf"\b{re.escape(each)}\b", about)]
    shown = shown or [each for each in replicas.leaders if not each.startswith("__")]
    written = {name for (name, _), view in replicas.replicas.items() if view.end}
    drawn = [
        picture(replicas, each, width, colour=colour, language=language)
        for each in shown
        if each in written or len(shown) == 1
    ]
    widths = [max(map(_shown_width, lines), default=0) + _GAP for lines in drawn]
    if sum(widths) > width:
        return [line for lines in drawn for line in lines]
    return [
        "".join(
            f"{line}{' ' * (size - _shown_width(line))}"
            for line, size in zip(row, widths, strict=True)
        ).rstrip()
        for row in zip_longest(*drawn, fillvalue="")
    ]


def _shown_width(text: str) -> int:
    """On a terminal, where colours take no column."""
    return cell_len(re.sub(r"\x1b\[\d+m", "", text))


def picture(
    replicas: Replicas, partition: str, width: int, *, colour: bool = False, language: str = "en"
) -> list[str]:
    """The lines, none wider than `width`. Older records are left out if there are too many. Nothing
    if no replica is known: compacted logs are not recorded."""
    words = WORDS[language]
    views = {b: view for (name, b), view in replicas.replicas.items() if name == partition}
    if not views:
        return []
    leader, epoch = replicas.leaders.get(partition, (None, 0))
    members = replicas.in_sync.get(partition, ())
    names = {
        broker: f"b{broker} {words[_state(broker, leader, members, replicas.down)]}"
        for broker in sorted(views)
    }
    name_width = max(map(cell_len, (words["offset"], *names.values())))
    columns = _columns(views, width - name_width - 4)
    offsets = "".join(f" {_padded(str(base), size)}" for base, size in columns)
    topic = partition.rpartition("-")[0] if partition.endswith("-0") else partition
    leads = words["none"] if leader is None else f"b{leader}"
    in_sync = " ".join(f"b{each}" for each in members) or words["none"]
    facts = f"{words['leader']} {leads}, {words['epoch']} {epoch}, {words['in sync']} {in_sync}"
    return [
        f"{topic}: {facts}",
        _row(words["offset"], name_width, offsets),
        *(
            _row(name, name_width, _cells(views[broker], columns, colour=colour))
            for broker, name in names.items()
        ),
    ]


def _state(broker: int, leader: int | None, members: tuple[int, ...], down: set[int]) -> str:
    if broker in down:
        return "down"
    if broker == leader:
        return "leader"
    return "in sync" if broker in members else "behind"


def _row(name: str, name_width: int, cells: str) -> str:
    return f"  {_padded(name, name_width)} {cells}".rstrip()


def _padded(text: str, size: int) -> str:
    return set_cell_size(text, size)


def _text(batch: tuple[int, int, int, str]) -> str:
    base, last, epoch, value = batch
    if cell_len(value) > _VALUE_MAX:
        value = set_cell_size(value, _VALUE_MAX - 1) + "…"
    if not value and last > base:
        value = f"{base}-{last}"
    return f"{value} e{epoch}".strip()


def _held(view: ReplicaView) -> list[tuple[int, int, int, str]]:
    """Without those that were deleted below the start of the log. Of live clusters batches are not
    known, but ranges by leader epoch."""
    batches = view.batches or _ranges(view)
    return [batch for batch in batches if batch[1] >= view.log_start]


def _ranges(view: ReplicaView) -> list[tuple[int, int, int, str]]:
    """Parted at the high watermark."""
    starts = {max(start, view.log_start): epoch for epoch, start in view.epochs}
    edges = sorted({*starts, view.high_watermark, view.end})
    found, epoch = [], -1
    for first, end in pairwise(edges):
        epoch = starts.get(first, epoch)
        if epoch >= 0 and end <= view.end:
            found.append((first, end - 1, epoch, ""))
    return found


def _columns(views: dict[int, ReplicaView], width: int) -> list[tuple[int, int]]:
    """First offsets and widths, as many of the last ones as fit."""
    sizes: dict[int, int] = {}
    for view in views.values():
        for batch in _held(view):
            wanted = max(cell_len(_text(batch)), len(str(batch[0])))
            sizes[batch[0]] = max(sizes.get(batch[0], 0), wanted)
    columns: list[tuple[int, int]] = []
    for base in sorted(sizes, reverse=True):
        width -= sizes[base] + 1
        if width < 1:
            break
        columns.insert(0, (base, sizes[base]))
    return columns


def _cells(view: ReplicaView, columns: list[tuple[int, int]], *, colour: bool) -> str:
    held = {batch[0]: batch for batch in _held(view)}
    drawn = ""
    is_marked = False
    for base, size in columns:
        if base >= view.end:
            break
        mark = not is_marked and view.high_watermark <= base
        is_marked |= mark
        cell = _padded(_text(held[base]) if base in held else "", size)
        if colour and base in held:
            cell = f"\x1b[{_COLOURS[held[base][2] % len(_COLOURS)]}m{cell}\x1b[0m"
        drawn += ("║" if mark else "│") + cell
    return drawn + ("│" if is_marked else "║")
