import { expect, test } from "vitest";
import { safe } from "./safe";

test("a name is shown without what could deceive", () => {
  expect(safe("a\u0000\n\u001b[31m\u0085\u202eb\u2066")).toBe(
    "a\\u0000\\u000a\\u001b[31m\\u0085\\u202eb\\u2066",
  );
  expect(safe("a\u061c\u200b\ufeff\u2028\u{e0041}")).toBe(
    "a\\u061c\\u200b\\ufeff\\u2028\\U000e0041",
  );
  expect(safe("orders-1 \ubb3c")).toBe("orders-1 \ubb3c");
});
