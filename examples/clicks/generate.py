"""Clicks of visitors, as lines for `suwi produce --json`; a few of them are not readable.

python examples/clicks/generate.py | suwi produce clicks --json
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, 8, 0, tzinfo=UTC)
PAGES = ["/", "/search", "/item/17", "/item/23", "/cart", "/pay"]


def clicks(visits: int, seed: int) -> Iterator[dict[str, object]]:
    """Records in the order in which they arrive. A visitor clicks, pauses, and comes back later."""
    rng = random.Random(seed)
    found: list[tuple[datetime, str]] = []
    for visit in range(visits):
        user = f"user-{rng.randrange(max(1, visits // 3))}"
        at = START + timedelta(minutes=3 * visit)
        for _ in range(rng.randint(1, 6)):
            found.append((at, user))
            at += timedelta(seconds=rng.randint(5, 240))
    for number, (at, user) in enumerate(sorted(found)):
        click = {"user": user, "page": rng.choice(PAGES), "at": at.isoformat()}
        value = "not a click" if number % 50 == 49 else json.dumps(click)
        yield {"key": user, "value": value}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--visits", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for record in clicks(options.visits, options.seed):
        sys.stdout.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
