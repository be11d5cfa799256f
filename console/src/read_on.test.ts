import { expect, test } from "vitest";
import { queryText } from "./address";
import type { PartitionRange } from "./api";
import { isAtEnd, readOn, withNew } from "./read_on";

function range(partition: number, next: number, end = 9): PartitionRange {
  return { partition, start: 0, first: 0, next, end };
}

/** Of a search that has looked back from the end to `first`. */
function back(partition: number, first: number): PartitionRange {
  return { partition, start: 0, first, next: 9, end: 9 };
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

test("a search from the newest goes on below the places that it has reached", () => {
  const asked = { mode: "search", partition: "", committed: "" };
  const ranges = [back(0, 4), back(1, 0), back(2, 9)];
  expect(queryText(readOn(asked, ranges, null))).toBe("at=0%3A4%2C2%3A9&from=before");
  expect(queryText(readOn(asked, ranges, 2))).toBe("at=0%3A4&from=end&rest=2");
  const further = readOn({ ...asked, from: "before", at: "0:4" }, [back(0, 2)], null);
  expect(queryText(further)).toBe("at=0%3A2&from=before");
});

test("it is at its end at the start of all logs", () => {
  expect(isAtEnd([back(0, 0), back(1, 0)], true)).toBe(true);
  expect(isAtEnd([back(0, 0), back(1, 1)], true)).toBe(false);
  expect(isAtEnd([range(0, 9), range(1, 4)])).toBe(false);
});

test("what was read is one range, in both directions, also after a pause", () => {
  const onward = withNew([range(0, 4), range(1, 2)], [{ ...range(0, 6), first: 4 }]);
  expect(onward).toEqual([range(0, 6), range(1, 2)]);
  expect(withNew([back(0, 7)], [{ ...back(0, 3), next: 7 }])).toEqual([back(0, 3)]);
});

test("an address does not become longer than the server reads", () => {
  const ranges = Array.from({ length: 10_000 }, (_, partition) => range(partition, 1e12, 1e13));
  const followed = readOn({}, ranges, 200);
  expect(queryText(followed).length).toBeLessThan(8 * 1024 - 3 * 1024);
});
