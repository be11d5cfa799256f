import { expect, test } from "vitest";
import { queryText } from "./address";
import type { PartitionRange } from "./api";
import { readOn } from "./read_on";

function range(partition: number, next: number, end = 9): PartitionRange {
  return { partition, start: 0, first: 0, next, end };
}

test("what follows is asked for by the places of the partitions that are not read", () => {
  const asked = { from: "start", partition: "", committed: "yes" };
  const followed = readOn(asked, [range(0, 4), range(1, 9), range(2, 0)], null);
  expect(queryText(followed)).toBe("committed=yes&at=0%3A4%2C2%3A0&from=at");
});

test("partitions that nothing was read of yet are not named", () => {
  const ranges = [range(0, 9), range(1, 4), range(2, 0), range(3, 0)];
  const asked = { from: "time", time_ms: "17", at: "0:3", rest: "1" };
  expect(queryText(readOn(asked, ranges, 2))).toBe("at=1%3A4&from=time&time_ms=17&rest=2");
});

test("an address does not become longer than the server reads", () => {
  const ranges = Array.from({ length: 10_000 }, (_, partition) => range(partition, 1e12, 1e13));
  const followed = readOn({}, ranges, 200);
  expect(queryText(followed).length).toBeLessThan(8 * 1024 - 3 * 1024);
});
