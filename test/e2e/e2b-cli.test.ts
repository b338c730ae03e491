import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { describe, it } from "node:test";
import { e2b } from "./e2b-cli.ts";

/** What a command that must succeed prints. */
async function output(...argv: string[]): Promise<string> {
  const { code, stdout, stderr } = await e2b(argv);
  assert.equal(code, 0, `e2b ${argv.join(" ")}: ${stderr}`);
  return stdout.trim();
}

describe("E2B's own CLI", { timeout: 240_000 }, () => {
  it("creates, lists, runs commands with their input and code, pauses, resumes and kills", async () => {
    const id = await output("sandbox", "create", "--detach", "--timeout", "120", "base");
    const listed = async (state: string): Promise<string[]> => {
      const rows = await output("sandbox", "list", "--state", state, "--format", "json");
      return (JSON.parse(rows) as { sandboxId: string }[]).map(({ sandboxId }) => sandboxId);
    };
    assert.ok((await listed("running")).includes(id));
    assert.match(await output("sandbox", "info", id), /State: running\n/);

    const said = await e2b([
      "sandbox",
      "exec",
      "-u",
      "root",
      "-e",
      "A=b c",
      "-c",
      "/tmp",
      id,
      'echo "$A"; pwd; id -un; exit 3',
    ]);
    assert.deepEqual([said.code, said.stdout], [3, "b c\n/tmp\nroot\n"]);
    const bytes = randomBytes(1 << 20);
    const fed = await e2b(["sandbox", "exec", id, "sha256sum"], { stdin: bytes });
    assert.deepEqual([fed.code, fed.stdout], [0, `${createHash("sha256").update(bytes).digest("hex")}  -\n`]);
    await output("sandbox", "exec", "--background", id, "exec sleep 1000");

    assert.match(await output("sandbox", "pause", id), /has been paused/);
    assert.match(await output("sandbox", "pause", id), /is already paused/);
    assert.ok((await listed("paused")).includes(id));
    assert.match(await output("sandbox", "resume", id), /has been resumed/);
    assert.match(await output("sandbox", "exec", id, "pgrep -x sleep"), /^\d+$/);

    assert.match(await output("sandbox", "kill", id), /has been killed/);
    assert.match((await e2b(["sandbox", "kill", id])).stderr, /wasn't found/);
    const gone = await e2b(["sandbox", "info", id]);
    assert.deepEqual([gone.code, /wasn't found/.test(gone.stderr)], [1, true], gone.stderr);
  });

  it("takes snapshots, starts sandboxes from them, lists and deletes them", async () => {
    const id = await output("sandbox", "create", "--detach", "--timeout", "120", "base");
    await output("sandbox", "exec", id, "echo kept > note");
    await output("sandbox", "snapshot", "create", "--name", "by-e2b-cli", id);
    assert.match(await output("sandbox", "snapshot", "list", id), /by-e2b-cli/);
    const child = await output("sandbox", "create", "--detach", "--timeout", "120", "by-e2b-cli");
    assert.equal(await output("sandbox", "exec", child, "cat note"), "kept");
    await output("sandbox", "kill", id, child);
    await output("sandbox", "snapshot", "delete", "by-e2b-cli");
    assert.doesNotMatch(await output("sandbox", "snapshot", "list"), /by-e2b-cli/);
  });
});
