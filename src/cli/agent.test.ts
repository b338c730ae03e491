import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, describe, it } from "node:test";
import { NO_TERMINAL, onTerminal } from "./testing/on-terminal.ts";
import { aenv, TestIo } from "./testing/run.ts";
import { KEY, ServerDouble } from "./testing/server.ts";

const binDir = process.env.AENV_TEST_BIN_DIR;
const NO_AGENT = binDir === undefined ? "needs AENV_TEST_BIN_DIR, the folder of a built envd" : false;

/** The CLI against the real agent, run as a plain process of this machine. */
describe("the real agent", { skip: NO_AGENT }, () => {
  let agent: ChildProcess;
  let server: ServerDouble;
  let id: string;
  before(async () => {
    agent = spawn(join(binDir ?? "", "envd"), ["-listen", "127.0.0.1:0"], { stdio: ["ignore", "ignore", "pipe"] });
    assert.ok(agent.stderr);
    const [line] = (await once(createInterface(agent.stderr), "line")) as [string];
    server = await ServerDouble.start({ agentUrl: `http://${line.split(" ").at(-1)}` });
    id = server.add().sandboxID;
  });
  after(async () => {
    await server[Symbol.asyncDispose]();
    agent.kill();
    await once(agent, "exit");
  });

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
});
