import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { type LogEntry, Sandbox, Template, waitForFile } from "e2b";
import { createApi } from "../../scripts/setup/api.ts";
import { assertNothingLost } from "./host.ts";
import { output, useServer } from "./sdk.ts";
import { sharedServer, type TestServer, until } from "./server.ts";

const COUNTER =
  "echo on stdout; echo on stderr >&2; whoami > who; n=0; while :; do n=$((n+1)); echo $n > count; sleep 0.05; done";

describe("start and ready commands of templates", { timeout: 120_000 }, () => {
  let server: TestServer;
  const made: string[] = [];
  before(async () => {
    server = await sharedServer();
    useServer(server);
  });
  after(async () => {
    const api = createApi(server.url, server.apiKey);
    for (const name of made) await api.call("DELETE", `/templates/${name}`);
  });

  /** Builds as a user of the SDK does, from the image that `base` is made from. */
  async function build(name: string, startCmd: string, readyCmd: string): Promise<string[]> {
    if (!made.includes(name)) made.push(name);
    const said: string[] = [];
    const onBuildLogs = ({ message }: LogEntry): void => void said.push(message);
    const template = Template().fromImage(server.baseImage).setStartCmd(startCmd, readyCmd);
    await Template.build(template, name, { cpuCount: 2, memoryMB: 1024, onBuildLogs });
    return said;
  }

  it("what is started runs in every sandbox, in the state it was captured in, and the log says so in E2B's words", async () => {
    const said = await build("started", COUNTER, waitForFile("/home/user/count").getCmd());
    const lines = [
      "Running start command",
      "[start] [stdout]: on stdout",
      "Waiting for template to be ready: [ -f /home/user/count ]",
      "Template is ready",
    ];
    assert.deepEqual(
      said.filter((line) => lines.includes(line)),
      lines,
      said.join("\n"),
    );
    assert.ok(said.includes("[start] [stderr]: on stderr"));

    const sandboxes = [await Sandbox.create("started"), await Sandbox.create("started")];
    try {
      for (const sandbox of sandboxes) {
        const count = async (): Promise<number> => Number(await output(sandbox, "cat count"));
        const first = await count();
        await until("the counter", async () => (await count()) > first);
        assert.equal(await output(sandbox, "cat who"), "user");
        assert.ok(
          (await sandbox.commands.list()).some(({ args }) => args.includes(COUNTER)),
          "it is listed as a command",
        );
      }
      const [rebooted] = sandboxes;
      assert.ok(rebooted !== undefined);
      await rebooted.commands.run("rm who");
      await rebooted.pause({ keepMemory: false });
      await rebooted.connect();
      await until("who started it", async () => (await output(rebooted, "cat who || true")) === "user");
      assert.equal((await rebooted.commands.list()).filter(({ args }) => args.includes(COUNTER)).length, 1);
    } finally {
      await Promise.all(sandboxes.map((sandbox) => sandbox.kill()));
    }
  });

  it("BLD-11: a start command that fails fails the build, which says why; an older build still serves", async () => {
    await build("fails", "sleep 1000", "true");
    await assert.rejects(
      build("fails", "echo first; echo no such port >&2; exit 3", "sleep 1000"),
      /start command failed: exit status 3[\s\S]*no such port/,
    );
    const sandbox = await Sandbox.create("fails");
    try {
      assert.equal(await output(sandbox, "pgrep -xc sleep"), "1");
    } finally {
      await sandbox.kill();
    }
  });

  it("a template that is deleted while it is started leaves nothing", async () => {
    const api = createApi(server.url, server.apiKey);
    const ids = await api.call<{ templateID: string; buildID: string }>("POST", "/v3/templates", { name: "deleted" });
    const path = `/templates/${ids.templateID}/builds/${ids.buildID}`;
    const plan = { fromImage: server.baseImage, startCmd: "sleep 1000", readyCmd: "false" };
    await api.call("POST", `/v2${path}`, plan);
    await until("the ready command", async () => {
      const { logs } = await api.call<{ logs: string[] }>("GET", `${path}/status`);
      return logs.includes("Waiting for template to be ready: false");
    });
    await api.call("DELETE", `/templates/${ids.templateID}`);
    await assertNothingLost(server);
  });
});
