"""The content of a simulated drive: for each file and directory what is written and what is synced.

`FileNode.change` and `Volume.rename_all` write, `FileNode.settle` and `Volume.sync_dir` sync,
`Volume.lose_power` leaves what a restarted machine would find.
Invariant: what was synced and not changed since survives `lose_power`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from suwi.sim.random import SimRandom

SECTOR_BYTES = 512


class Write(NamedTuple):
    position: int
    data: bytes


class Truncate(NamedTuple):
    size_bytes: int


Change = Write | Truncate


def apply(content: bytearray, change: Change) -> None:
    match change:
        case Write(position, data):
            if position > len(content):
                content.extend(bytes(position - len(content)))
            content[position : position + len(data)] = data
        case Truncate(size_bytes):
            if size_bytes < len(content):
                del content[size_bytes:]
            else:
                content.extend(bytes(size_bytes - len(content)))


def tear(safe: bytearray, pending: list[Change], random: SimRandom) -> bytearray:
    """What may be on the drive after a power loss while `pending` was being written."""
    outcome = random.below(4)
    if not pending or outcome == 0:
        return bytearray(safe)
    if outcome == 1:
        return _tear_in_order(safe, pending, random)
    return _tear_by_sector(safe, pending, random)


def _tear_in_order(safe: bytearray, pending: list[Change], random: SimRandom) -> bytearray:
    """The first changes are complete, one is cut short, the rest is lost."""
    result = bytearray(safe)
    whole = random.below(len(pending) + 1)
    for change in pending[:whole]:
        apply(result, change)
    if whole < len(pending):
        match pending[whole]:
            case Write(position, data):
                apply(result, Write(position, data[: random.below(len(data) + 1)]))
            case Truncate():
                pass  # A size changes completely or not at all.
    return result


def _tear_by_sector(safe: bytearray, pending: list[Change], random: SimRandom) -> bytearray:
    """Every sector has the content of some change, independent of its neighbours."""
    arrives = random.choice((0.1, 0.5, 0.9))
    cache = bytearray(safe)
    result = bytearray(safe)
    sizes = [len(safe)]
    for change in pending:
        before = len(cache)
        apply(cache, change)
        sizes.append(len(cache))
        if isinstance(change, Write):
            first, end = min(change.position, before), change.position + len(change.data)
        else:
            first, end = sorted((change.size_bytes, before))
        for start in range(first - first % SECTOR_BYTES, end, SECTOR_BYTES):
            if random.chance(arrives):
                sector = bytes(cache[start : start + SECTOR_BYTES])
                apply(result, Write(start, sector.ljust(SECTOR_BYTES, b"\0")))
    apply(result, Truncate(random.choice(sizes)))
    return result


class FileNode:
    """A file's bytes as processes see them, and those that are synced."""

    __slots__ = ("content", "links", "locked", "modified_ms", "opens", "pending", "safe")

    def __init__(self, modified_ms: int) -> None:
        self.content = bytearray()
        self.safe = bytearray()
        self.pending: list[Change] = []
        self.modified_ms = modified_ms
        self.opens = 0
        self.links = 0
        self.locked = False

    def change(self, change: Change, now_ms: int) -> None:
        apply(self.content, change)
        self.pending.append(change)
        self.modified_ms = now_ms

    def settle(self) -> None:
        for change in self.pending:
            apply(self.safe, change)
        self.pending.clear()

    def settle_badly(self, random: SimRandom) -> None:
        """A failed fsync: the kernel drops dirty pages, written or not, and never retries."""
        self.safe = tear(self.safe, self.pending, random)
        self.pending.clear()

    def lose_power(self, random: SimRandom | None) -> None:
        if random is not None:
            self.safe = tear(self.safe, self.pending, random)
        self.pending.clear()
        self.content = bytearray(self.safe)
        self.opens = 0
        self.locked = False


class DirNode:
    __slots__ = ("entries", "modified_ms", "safe")

    def __init__(self, modified_ms: int) -> None:
        self.entries: dict[str, Node] = {}
        self.safe: dict[str, Node] = {}
        self.modified_ms = modified_ms


Node = FileNode | DirNode


class Naming(NamedTuple):
    """From now on `name` in `directory` means `node`, or nothing."""

    directory: DirNode
    name: str
    node: Node | None


def _enter(entries: dict[str, Node], naming: Naming) -> None:
    if naming.node is None:
        entries.pop(naming.name, None)
    else:
        entries[naming.name] = naming.node


class Volume:
    """One drive with one file system."""

    def __init__(self, now_ms: int, capacity_bytes: int | None) -> None:
        self.root = DirNode(now_ms)
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._pending: list[tuple[Naming, ...]] = []

    def free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return 1 << 40
        return max(0, self.capacity_bytes - self.used_bytes)

    def change_file(self, node: FileNode, change: Change, now_ms: int) -> None:
        before = len(node.content)
        node.change(change, now_ms)
        self.used_bytes += len(node.content) - before

    def rename_all(self, *namings: Naming, now_ms: int) -> None:
        """Change names together: after a power loss all changes are in effect or none."""
        unlinked: list[FileNode] = []
        for naming in namings:
            replaced = naming.directory.entries.get(naming.name)
            _enter(naming.directory.entries, naming)
            naming.directory.modified_ms = now_ms
            if isinstance(naming.node, FileNode):
                naming.node.links += 1
            if isinstance(replaced, FileNode):
                replaced.links -= 1
                unlinked.append(replaced)
        self._pending.append(namings)
        for node in unlinked:
            self.release_if_unused(node)

    def release_if_unused(self, node: FileNode) -> None:
        """Free the space of a file that has neither a name nor an open descriptor."""
        if not node.links and not node.opens:
            self.used_bytes -= len(node.content)
            node.links = -1

    def sync_dir(self, directory: DirNode) -> None:
        """Sync the directory's names, and the renames in other directories that they depend on."""
        touched = {id(directory)}  # Membership only; the order comes from the list.
        settled, waiting = [], []
        for namings in reversed(self._pending):
            if any(id(naming.directory) in touched for naming in namings):
                touched.update(id(naming.directory) for naming in namings)
                settled.append(namings)
            else:
                waiting.append(namings)
        for namings in reversed(settled):
            for naming in namings:
                _enter(naming.directory.safe, naming)
        self._pending = waiting[::-1]

    def lose_process(self) -> None:
        """The kernel closes a killed process's files and releases its locks."""
        self.used_bytes = 0
        for node in _walk(self.root):
            if isinstance(node, FileNode):
                node.opens = 0
                node.locked = False
                self.used_bytes += len(node.content)

    def lose_power(self, random: SimRandom | None) -> None:
        """Keep what is synced and, with `random`, some of what was being written."""
        if random is not None:
            self._keep_some_names(random)
        self._pending.clear()
        _restore(self.root)
        self.used_bytes = 0
        for node in _walk(self.root):
            if isinstance(node, FileNode):
                node.lose_power(random)
                node.links = 1
                self.used_bytes += len(node.content)

    def _keep_some_names(self, random: SimRandom) -> None:
        """Directories lose their newest changes, each from its own point on."""
        lost_chance = random.choice((0.0, 0.2, 1.0))
        behind: set[int] = set()
        for namings in self._pending:
            directories = [id(naming.directory) for naming in namings]
            if random.chance(lost_chance) or any(each in behind for each in directories):
                behind.update(directories)
                continue
            for naming in namings:
                _enter(naming.directory.safe, naming)


def _walk(directory: DirNode) -> Iterator[Node]:
    yield directory
    for name in sorted(directory.entries):
        node = directory.entries[name]
        if isinstance(node, DirNode):
            yield from _walk(node)
        else:
            yield node


def _restore(directory: DirNode) -> None:
    directory.entries = dict(directory.safe)
    for node in directory.entries.values():
        if isinstance(node, DirNode):
            _restore(node)
