import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { NO_TERMINAL, onTerminal } from "./testing/on-terminal.ts";
import { NO_AGENT, withRealAgent } from "./testing/real-agent.ts";
import { aenv, TestIo } from "./testing/run.ts";
import { KEY, type ServerDouble } from "./testing/server.ts";

/** The CLI against the real agent, run as a plain process of this machine. */
describe("the real agent", { skip: NO_AGENT }, () => {
  let server: ServerDouble;
  let id: string;
  before(async () => {
    server = await withRealAgent();
    id = server.add().sandboxID;
  });
  after(async () => await server[Symbol.asyncDispose]());

  async function exec(words: readonly string[], stdin: Uint8Array | string = "") {
    const io = new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY } });
    io.stdin.end(stdin);
    return await aenv(["exec", id, ...words], io);
  }

  it("gives exec the codes a shell would", async () => {
    for (const [words, code] of [
      [["sh", "-c", "exit 42"], 42],
      [["sh", "-c", "kill -9 $$"], 137],
      [["sh", "-c", "kill -SEGV $$"], 139],
      [["no-such-program"], 127],
      [["/etc/passwd"], 126],
    ] as const) {
      assert.equal((await exec(words)).code, code, words.join(" "));
    }
  });

  it("carries any bytes both ways and ends with a command that has read enough", async () => {
    const bytes = Buffer.from(Array.from({ length: 1 << 20 }, (_, at) => (at * 7) % 256));
    assert.ok((await exec(["cat"], bytes)).stdoutBytes.equals(bytes));
    const satisfied = await exec(["head", "-c", "1"], bytes);
    assert.deepEqual([satisfied.code, satisfied.stdoutBytes.length], [0, 1]);
  });

  it("comes back to the same shell", { skip: NO_TERMINAL }, async () => {
    const left = await onTerminal(
      server.url,
      ["cn", id],
      [
        ["send", "KEPT=yes; PS1=pro''mpt:\r"],
        ["expect", "prompt:"],
        ["send", "\r~."],
      ],
    );
    assert.deepEqual([left.code, left.raw, left.restored], [0, true, true], left.shown);
    const back = await onTerminal(
      server.url,
      ["cn", id],
      [
        ["expect", "prompt:"],
        ["send", "echo kept=$KEPT; stty size\r"],
        ["expect", "kept=yes"],
        ["expect", "25 90"],
        ["send", "exit 6\r"],
      ],
    );
    assert.deepEqual([back.code, back.restored], [6, true], back.shown);
  });

  it("leaves a command on a terminal and comes back to it; its end is kept for a while", {
    skip: NO_TERMINAL,
  }, async () => {
    const left = await onTerminal(
      server.url,
      ["exec", "-it", "-w", "/tmp", id, "sh"],
      [
        ["send", "kept=yes; stty size\r"],
        ["expect", "25 90"],
        ["send", "\x10\x11"],
      ],
    );
    assert.deepEqual([left.code, left.raw, left.restored], [0, true, true], left.shown);
    const pid = /aenv attach \w+ (\d+) /.exec(left.shown)?.[1] ?? "";
    const back = await onTerminal(
      server.url,
      ["attach", id, pid],
      [
        ["send", "echo kept=$kept; exit 6\r"],
        ["expect", "kept=yes"],
      ],
    );
    assert.deepEqual([back.code, back.restored], [6, true], back.shown);
    const late = new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY } });
    const ended = await aenv(["attach", id, pid], late);
    assert.deepEqual([ended.code, ended.stdout.includes("kept=yes")], [6, true]);
    const again = await onTerminal(server.url, ["attach", id, pid], [["expect", "kept=yes"]]);
    assert.deepEqual([again.code, again.restored], [6, true], again.shown);
  });

  it("-t gives a command a terminal that follows ours, -i its lines", { skip: NO_TERMINAL }, async () => {
    const sized = await onTerminal(
      server.url,
      [
        "exec",
        "-t",
        id,
        "sh",
        "-c",
        'stty size; until [ "$(stty size)" = "33 101" ]; do sleep 0.05; done; echo re"sized"',
      ],
      [
        ["expect", "25 90"],
        ["resize", 101, 33],
        ["expect", "resized"],
      ],
    );
    assert.deepEqual([sized.code, sized.restored], [0, true], sized.shown);
    const lines = await onTerminal(
      server.url,
      ["exec", "-i", id, "sh", "-c", "read x; echo got=$x; cat >/dev/null; exit 4"],
      [
        ["send", "a line\r"],
        ["expect", "got=a line"],
        ["send", "\x04"],
      ],
    );
    assert.deepEqual([lines.code, lines.restored], [4, true], lines.shown);
  });
});
