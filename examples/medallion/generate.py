"""Orders as a shop sends them, their payments, and the products that they are about.

Some orders come twice, some late, some cannot be read, and later ones have a field more. Some
payments come twice, some cannot be read, some are of another sum than their order.

python examples/medallion/generate.py orders | suwi produce orders --json
python examples/medallion/generate.py payments | suwi produce payments --json
python examples/medallion/generate.py products --to /tmp/medallion/products
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, 8, 0, tzinfo=UTC)
LATE_MINUTES_MAX = 4
"""The pipelines wait for ten."""
PRODUCTS = {
    f"sku-{number}": {"category": category, "cents": 100 * (number + 1)}
    for number, category in enumerate(["books", "books", "games", "games", "garden", "music"])
}


def orders(count: int, seed: int, start: int = 0) -> Iterator[dict[str, object]]:
    """Records in the order in which they arrive; one every five seconds of the orders' own time."""
    rng = random.Random(f"{seed}-{start}")
    arriving: list[tuple[datetime, int, str]] = []
    for number in range(start, start + count):
        at = START + timedelta(seconds=5 * number)
        value = _value(number, start + count // 2, at, rng)
        late_s = rng.randint(1, 60 * LATE_MINUTES_MAX) if rng.random() < 0.1 else 0
        arriving.append((at + timedelta(seconds=late_s), number, value))
        if rng.random() < 0.1:  # The sender did not get an answer, and tried again.
            again_s = late_s + rng.randint(1, 30)
            arriving.append((at + timedelta(seconds=again_s), number, value))
    for _, number, value in sorted(arriving):
        yield {"key": str(number), "value": value}


def _value(number: int, second_half: int, at: datetime, rng: random.Random) -> str:
    order: dict[str, object] = {
        "id": number,
        # One product is not among those that are known.
        "sku": f"sku-{rng.randrange(len(PRODUCTS) + 1)}",
        "quantity": rng.randint(1, 5),
        "at": at.isoformat(),
    }
    if number >= second_half:
        order["shipping"] = {"country": rng.choice(["KR", "DE"]), "express": rng.random() < 0.5}
    match rng.randrange(40):
        case 0:
            return "{not JSON"
        case 1:
            return json.dumps(order | {"quantity": "three"})
        case 2:  # Milliseconds where text is expected: as seconds they are the year 57000.
            return json.dumps(order | {"at": round(at.timestamp() * 1000)})
        case 3:
            return json.dumps(order | {"id": None})
        case 4:
            return json.dumps(order)[:-1] + ', "id": 0}'
    return json.dumps(order)


def payments(count: int, seed: int, start: int = 0) -> Iterator[dict[str, object]]:
    """As `orders`: nine orders in ten are paid, each within five minutes."""
    rng = random.Random(f"payments-{seed}-{start}")
    due = {int(str(one["key"])): _cents(str(one["value"])) for one in orders(count, seed, start)}
    arriving: list[tuple[datetime, int, str]] = []
    for number in sorted(number for number in due if rng.random() < 0.9):
        at = START + timedelta(seconds=5 * number + rng.randint(5, 300))
        value = {"payment": f"p-{number}", "order_id": number, "cents": due[number]}
        value |= {"paid_at": at.isoformat()}
        match rng.randrange(20):
            case 0:
                value["cents"] = due[number] + 1
            case 1:
                value["cents"] = "all of it"
            case 2:
                arriving.append((at + timedelta(seconds=20), number, json.dumps(value)))
        arriving.append((at, number, json.dumps(value)))
    for _, number, text in sorted(arriving):
        yield {"key": str(number), "value": text}


def _cents(order: str) -> int:
    """What an order costs; nobody joins the payment of one that cannot be read."""
    try:
        read = json.loads(order)
        return int(read["quantity"]) * int(PRODUCTS.get(read["sku"], {"cents": 0})["cents"])
    except ValueError:
        return 0


def write_products(path: str) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    rows = [{"sku": sku, **product} for sku, product in PRODUCTS.items()]
    write_deltalake(path, pa.Table.from_pylist(rows), mode="overwrite")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("orders", "payments", "products"))
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0, help="the number of the first order")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--to", default="/tmp/medallion/products", help="of products: the table")
    options = parser.parse_args()
    if options.what == "products":
        write_products(options.to)
        return
    records = payments if options.what == "payments" else orders
    for record in records(options.count, options.seed, options.start):
        sys.stdout.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
