import { expect, test } from "vitest";
import { indented } from "./json";

test("JSON gets line breaks and keeps every digit", () => {
  expect(indented('{"a": 12345678901234567890.10, "b":[1,{}],"c":"x,{\\"y:"}')).toBe(
    '{\n  "a": 12345678901234567890.10,\n  "b": [\n    1,\n    {}\n  ],\n  "c": "x,{\\"y:"\n}',
  );
});

test("what is cut off or no JSON does not throw", () => {
  expect(indented('{"a":"b')).toBe('{\n  "a": "b');
  expect(indented("]".repeat(3))).toContain("]");
  expect(indented("[".repeat(100)).length).toBeLessThan(10_000);
});
