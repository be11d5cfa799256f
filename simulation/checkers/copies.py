"""Consume, transform, produce: every record is copied exactly once, and the group's offset says so.

What transactions themselves promise (aborted reads, torn transactions, lost writes) is checked by
`history_checker`.
"""

from collections.abc import Iterator

from simulation.transaction_workload import Copies, source_of


def broken_copies(found: Copies) -> Iterator[str]:
    for target, values in found.copies.items():
        times: dict[tuple[str, int], int] = {}
        for value in values:
            source = source_of(value)
            times[source] = times.get(source, 0) + 1
        yield from (
            f"duplicate: {partition} offset {offset} is copied {count} times to {target}"
            for (partition, offset), count in times.items()
            if count > 1
        )
        for partition, offsets in found.sources.items():
            committed = found.committed.get(partition, 0)
            for offset in offsets:
                is_copied = (partition, offset) in times
                if offset < committed and not is_copied:
                    yield f"skip: {partition} offset {offset} is not copied to {target}"
                if offset >= committed and is_copied:
                    yield (
                        f"inconsistent offsets: {partition} offset {offset} is copied to {target}, "
                        f"but {committed} is committed"
                    )
