// The address of what follows a page of records, or a part of a search.
import type { PartitionRange } from "./api";

type Query = Record<string, string>;

/** From partition `rest` on nothing was read yet: the address need not name those. */
export function readOn(asked: Query, ranges: PartitionRange[], rest: number | null): Query {
  const left = ranges.filter(
    (range) => range.next < range.end && (rest === null || range.partition < rest),
  );
  const at = left.map((range) => `${range.partition}:${range.next}`).join(",");
  const { partition = "", committed = "", from = "end", time_ms = "" } = asked;
  const kept = { partition, committed, at };
  if (rest === null) return { ...kept, from: "at", rest: "", time_ms: "" };
  return { ...kept, from, time_ms, rest: String(rest) };
}
