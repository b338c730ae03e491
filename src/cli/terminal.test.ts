import assert from "node:assert/strict";
import { after, beforeEach, describe, it } from "node:test";
import { NO_TERMINAL, onTerminal } from "./testing/on-terminal.ts";
import { ServerDouble } from "./testing/server.ts";

let server: ServerDouble;
beforeEach(async () => {
  server ??= await ServerDouble.start();
});
after(async () => await server?.[Symbol.asyncDispose]());

describe("a real terminal", { skip: NO_TERMINAL }, () => {
  it("is raw while attached and as before after the shell's end", async () => {
    server.agent.running.clear();
    const result = await onTerminal(
      server.url,
      ["start", "base"],
      [
        ["expect", "ready$ "],
        ["send", "exit 3\r"],
      ],
    );
    assert.deepEqual([result.code, result.raw, result.restored], [3, true, true], result.shown);
    assert.match(result.shown, /aenv cn i\d+/);
  });

  for (const [name, code] of [
    ["TERM", 143],
    ["HUP", 129],
    ["INT", 130],
  ] as const) {
    it(`is as before after SIG${name}`, async () => {
      server.agent.running.clear();
      const { sandboxID } = server.add();
      const result = await onTerminal(
        server.url,
        ["cn", sandboxID],
        [
          ["expect", "ready$ "],
          ["signal", name],
        ],
      );
      assert.deepEqual([result.code, result.raw, result.restored], [code, true, true], result.shown);
    });
  }

  it("tells the sandbox its size and each change of it", async () => {
    server.agent.running.clear();
    const { sandboxID } = server.add();
    const result = await onTerminal(
      server.url,
      ["cn", sandboxID],
      [
        ["expect", "ready$ "],
        ["resize", 132, 43],
        ["expect", "[132x43]"],
        ["send", "exit 0\r"],
      ],
    );
    assert.equal(result.code, 0, result.shown);
  });
});
