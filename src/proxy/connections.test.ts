import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, it } from "node:test";
import { connectionLimit } from "./connections.ts";

describe("how many clients may be connected", () => {
  const limited = (soft: string) =>
    `Max processes  1  1  processes\nMax open files            ${soft}   1048576   files\n`;

  it("leaves each of them a second open file, and the edge some of its own", () => {
    for (const soft of [64, 1024, 20_000, 1_048_576]) {
      const max = connectionLimit(limited(String(soft)));
      assert.ok(max > soft / 4 && 2 * max < soft - 10, `${max} of ${soft}`);
    }
  });
  it("is bounded where there is no limit, or none can be read", () => {
    for (const text of [limited("unlimited"), ""]) assert.equal(connectionLimit(text), 7168);
  });
  it("is read off this system's own text", () => {
    assert.notEqual(connectionLimit(readFileSync("/proc/self/limits", "utf8")), 0);
  });
});
