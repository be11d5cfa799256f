// How far a page of records was read, or a search has looked, and the address of what follows.
import type { PartitionRange } from "./api";

type Query = Record<string, string>;

/** A search from the newest goes towards the start of the log. */
export function isBackward({ mode, from = "end" }: Query): boolean {
  return mode === "search" && ["end", "before"].includes(from);
}

/** Where it goes on in each partition that is not read to its end, or back to its start. */
function placesLeft(ranges: PartitionRange[], isBack: boolean): [number, number][] {
  return ranges
    .filter((range) => (isBack ? range.first > range.start : range.next < range.end))
    .map((range) => [range.partition, isBack ? range.first : range.next]);
}

export function isAtEnd(ranges: PartitionRange[], isBack = false): boolean {
  return placesLeft(ranges, isBack).length === 0;
}

/** From partition `rest` on nothing was read yet: the address need not name those. */
export function readOn(asked: Query, ranges: PartitionRange[], rest: number | null): Query {
  const isBack = isBackward(asked);
  const at = placesLeft(ranges, isBack)
    .filter(([partition]) => rest === null || partition < rest)
    .map((place) => place.join(":"))
    .join(",");
  const { partition = "", committed = "", from = "end", time_ms = "" } = asked;
  const kept = { partition, committed, at };
  if (rest === null) return { ...kept, from: isBack ? "before" : "at", rest: "", time_ms: "" };
  return { ...kept, from, time_ms, rest: String(rest) };
}

/** The server sends what has changed; a search that goes on begins where it has ended. */
export function withNew(known: PartitionRange[], changed: PartitionRange[]): PartitionRange[] {
  const all = new Map(known.map((range) => [range.partition, range]));
  for (const range of changed) {
    const { first, next } = all.get(range.partition) ?? range;
    all.set(range.partition, {
      ...range,
      first: Math.min(first, range.first),
      next: Math.max(next, range.next),
    });
  }
  return [...all.values()];
}
