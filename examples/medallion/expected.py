"""What the layers must hold, computed in plain Python: for the tests, and under kills."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

Window = tuple[datetime, str]


class Expected:
    def __init__(self, values: Iterable[str], products: Mapping[str, Mapping[str, Any]]) -> None:
        """`values` are those of all records of the topic."""
        read = [(value, _order(value)) for value in values]
        self.bad = sorted(value for value, order in read if order is None)
        self.bronze = sorted(order["id"] for _, order in read if order is not None)
        self.silver: dict[int, tuple[str, int, str | None]] = {}
        """By id: category, cents and country."""
        self.gold: dict[Window, tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
        """By quarter of an hour and category: orders, pieces and cents."""
        for order in {order["id"]: order for _, order in read if order is not None}.values():
            product = products.get(order["sku"], {"category": "unknown", "cents": 0})
            cents = order["quantity"] * product["cents"]
            country = order.get("shipping", {}).get("country")
            self.silver[order["id"]] = product["category"], cents, country
            at = datetime.fromisoformat(order["at"])
            quarter = at.replace(minute=at.minute // 15 * 15, second=0)
            orders, pieces, earned = self.gold[quarter, product["category"]]
            total = orders + 1, pieces + order["quantity"], earned + cents
            self.gold[quarter, product["category"]] = total

    def pay(self, values: Iterable[str]) -> "Paid":
        """What comes of payments, which are the records of another topic."""
        return Paid(values, self.silver)

    def differences(
        self,
        bronze: Iterable[Mapping[str, Any]],
        silver: Iterable[Mapping[str, Any]],
        gold: Iterable[Mapping[str, Any]],
        bad: Iterable[str],
    ) -> list[str]:
        """What is missing, doubled or different in rows of the tables; nothing, if all is well.

        Dead letters are written at least once: of them only what is missing or strange counts.
        """
        found = []
        ids = sorted(row["id"] for row in bronze)
        if ids != self.bronze:
            found.append(f"bronze has {len(ids)} rows of {len(self.bronze)}")
        rows = [(row["id"], (row["category"], row["cents"], row["country"])) for row in silver]
        if len(rows) != len(self.silver) or dict(rows) != self.silver:
            found.append(f"silver has {len(rows)} rows of {len(self.silver)}")
        windows = [
            (
                (row["quarter"].astimezone(UTC), row["category"]),
                (row["orders"], row["pieces"], row["cents"]),
            )
            for row in gold
        ]
        wrong = set(windows) ^ set(self.gold.items())
        if len(windows) != len(self.gold) or wrong:
            found.append(f"gold has {len(windows)} rows of {len(self.gold)}: {sorted(wrong)[:5]}")
        if set(bad) != set(self.bad):
            found.append(f"{len(set(bad) ^ set(self.bad))} dead letters are missing or strange")
        return found


class Paid:
    def __init__(
        self, values: Iterable[str], silver: Mapping[int, tuple[str, int, str | None]]
    ) -> None:
        self.rows: dict[int, tuple[str, int, str]] = {}
        """By the order's id: its category, what was paid, and the payment."""
        self.countries: Counter[str] = Counter()
        """What was paid from each."""
        read = [json.loads(value) for value in values]
        self.bad = sorted(one["payment"] for one in read if not isinstance(one["cents"], int))
        """Payments that cannot be read."""
        self.of_another_sum: list[str] = []
        good = {one["payment"]: one for one in read if isinstance(one["cents"], int)}
        for payment, one in good.items():
            if one["order_id"] not in silver:
                continue
            category, cents, country = silver[one["order_id"]]
            if cents != one["cents"]:
                self.of_another_sum.append(payment)
                continue
            self.rows[one["order_id"]] = category, cents, payment
            self.countries[country or "unknown"] += cents

    def differences(
        self,
        paid: Iterable[Mapping[str, Any]],
        countries: Iterable[Mapping[str, Any]],
        bad: Iterable[str],
    ) -> list[str]:
        """What is missing, doubled or different; nothing, if all is well."""
        found = []
        rows = [(row["id"], (row["category"], row["cents"], row["payment"])) for row in paid]
        if len(rows) != len(self.rows) or dict(rows) != self.rows:
            found.append(f"paid has {len(rows)} rows of {len(self.rows)}")
        totals: Counter[str] = Counter()
        for row in countries:
            totals[row["country"]] += row["cents"]
        if totals != self.countries:
            found.append(f"countries paid {dict(totals)}, not {dict(self.countries)}")
        letters = sorted(json.loads(one)["payment"] for one in bad)
        if letters != sorted([*self.bad, *self.of_another_sum]):
            expected = len(self.bad) + len(self.of_another_sum)
            found.append(f"there are {len(letters)} dead letters of payments, not {expected}")
        return found


def _order(value: str) -> dict[str, Any] | None:
    """The order, or None where it is none."""
    try:
        order: dict[str, Any] = json.loads(value, object_pairs_hook=_unique)
    except ValueError:
        return None
    is_good = (
        isinstance(order["id"], int)
        and isinstance(order["quantity"], int)
        and isinstance(order["at"], str)
    )
    return order if is_good else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)
