"""Orders as they arrive: some twice, some late, as lines for `suwi produce --json`.

python examples/orders/generate.py | suwi produce orders --json
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, 8, 0, tzinfo=UTC)
LATE_MINUTES_MAX = 4


def orders(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Records in the order in which they arrive; one every two seconds of the orders' own time."""
    rng = random.Random(seed)
    arriving: list[tuple[datetime, int, str]] = []
    for number in range(count):
        at = START + timedelta(seconds=2 * number)
        order = {"id": number, "shop": f"shop-{number % 3}", "cents": 100 + number, "at": at}
        value = json.dumps(order, default=datetime.isoformat)
        # A tenth is late, a tenth comes twice: the sender did not get an answer and tried again.
        late_s = rng.randint(1, 60 * LATE_MINUTES_MAX) if rng.random() < 0.1 else 0
        arriving.append((at + timedelta(seconds=late_s), number, value))
        if rng.random() < 0.1:
            again_s = late_s + rng.randint(1, 30)
            arriving.append((at + timedelta(seconds=again_s), number, value))
    for _, number, value in sorted(arriving):
        yield {"key": str(number), "value": value}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for record in orders(options.count, options.seed):
        sys.stdout.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
