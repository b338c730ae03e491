import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { formatJson } from "./json.ts";

describe("JSON as it is printed", () => {
  it("is that of JSON.stringify, where it is not very deep", () => {
    const values = [
      null,
      'a "quoted" line\n',
      -1.5e30,
      [],
      {},
      [[], {}, [[]]],
      { a: undefined },
      [undefined, 1],
      { "": 0, 'na"me': { list: [1, { b: [true, false, null] }, "x"], gone: undefined }, last: "" },
    ];
    for (const value of values) assert.equal(formatJson(value), JSON.stringify(value, undefined, 2));
  });

  it("says the same however deep it is, and is not much longer for it", () => {
    const depth = 100_000;
    let value: unknown = "bottom";
    for (let level = 0; level < depth; level += 1) value = level % 2 === 0 ? [value] : { next: value };
    const text = formatJson(value);
    assert.ok(text.length < 20 * depth, `${text.length} characters`);
    let at: unknown = JSON.parse(text);
    let levels = 0;
    for (; typeof at === "object"; levels += 1) at = Object.values(at ?? {})[0];
    assert.deepEqual([at, levels], ["bottom", depth]);
  });
});
