import { expect, test } from "vitest";
import { linkTo, parsePlace } from "./address";

test("an address is parsed to what it was made of", () => {
  const place = parsePlace(linkTo("a/b", "groups", "x?y#z/ü", { partition: 1, from: "" }));
  expect([place.cluster, place.page, place.name]).toEqual(["a/b", "groups", "x?y#z/ü"]);
  expect([...place.query]).toEqual([["partition", "1"]]);
});

test("an address that was typed wrongly does not throw", () => {
  expect(parsePlace("#/%zz/topics").cluster).toBe("%zz");
  expect(parsePlace("").page).toBe("overview");
});
