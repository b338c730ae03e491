import assert from "node:assert/strict";
import { after, beforeEach, describe, it } from "node:test";
import { defaultName } from "./commands/pull.ts";
import { describeProgress, ProgressDisplay } from "./progress.ts";
import { aenv, TestIo } from "./testing/run.ts";
import { KEY, ServerDouble } from "./testing/server.ts";

const BUILD = "/templates/t1/builds/b1";
const MIB = 1024 * 1024;

let server: ServerDouble;
beforeEach(async () => {
  if (server !== undefined) return;
  server = await ServerDouble.start();
  server.scripted.set("POST /v3/templates", () => ({ status: 202, body: { templateID: "t1", buildID: "b1" } }));
  server.scripted.set(`POST /v2${BUILD}`, () => ({ status: 202 }));
  server.scripted.set("GET /templates/t1", () => ({ status: 200, body: { templateID: "t1", extra: [1] } }));
});
after(async () => await server?.[Symbol.asyncDispose]());

/** Serves `logs` from the offset asked for, one entry an answer, and `status` behind the last one. */
function script(logs: readonly string[], end: Record<string, unknown>): void {
  server.scripted.set(`GET ${BUILD}/status`, ({ query }) => {
    const at = Number(query.get("logsOffset"));
    const logEntries = logs.slice(at, at + 1).map((message) => ({ timestamp: "", level: "info", message }));
    const progress = { phase: "downloading", doneBytes: 3 * MIB, totalBytes: 12 * MIB, layersDone: 1, layersTotal: 5 };
    return { status: 200, body: { status: "building", logEntries, progress, ...end } };
  });
}

function io(options: { terminal?: boolean } = {}): TestIo {
  return new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY }, ...options });
}

function visible(text: string): string {
  return text.replaceAll("\r", "<cr>").replaceAll("\x1b", "<esc>");
}

describe("pull", () => {
  it("builds, shows log and bytes on standard error, and the template on standard output", async () => {
    script(["fetching", "done"], { status: "ready" });
    const argv = ["pull", "registry.local/a/Img:1", "--name", "n", "--cpu", "2", "--memory", "512"];
    const result = await aenv(argv, io());
    assert.equal(result.code, 0, result.stderr);
    assert.match(result.stdout, /^Template n \(t1\) is ready/);
    assert.match(result.stderr, /fetching\n[\s\S]*done\n/);
    assert.match(result.stderr, /downloading 3 MiB of 12 MiB \(25%\), 1 of 5 layers/);
    assert.doesNotMatch(visible(result.stderr), /<cr>|<esc>/);
    const bodies = server.seen.filter(({ method }) => method === "POST").map(({ body }) => body);
    assert.deepEqual(bodies, [{ name: "n", cpuCount: 2, memoryMB: 512 }, { fromImage: "registry.local/a/Img:1" }]);
  });

  it("prints the final template object with --json and nothing else on standard output", async () => {
    script([], { status: "ready" });
    const result = await aenv(["pull", "img", "--json"], io({ terminal: true }));
    assert.deepEqual(JSON.parse(result.stdout), { templateID: "t1", extra: [1] });
    assert.match(visible(result.stderr), /<cr><esc>\[K\[#{6}\.{18}\] downloading/);
    assert.match(visible(result.stderr), /<cr><esc>\[K$/);
  });

  it("fails with the server's reason", async () => {
    script(["fetching"], { status: "error", reason: { message: "no such image", kind: "not-found", step: "base" } });
    const result = await aenv(["pull", "img"], io());
    assert.equal(result.code, 3);
    assert.match(result.stderr, /aenv: the template could not be made: no such image\n$/);
  });

  it("removes the template of a failed pull, unless something else can be started from it", async () => {
    script([], { status: "error", reason: { message: "broken" } });
    const template = "GET /templates/t1";
    const whole = server.scripted.get(template);
    const removed: string[] = [];
    server.scripted.set("DELETE /templates/t1", ({ path }) => ({ status: 204, body: removed.push(path) }));
    for (const other of ["ready", "building", "error"]) {
      const builds = [
        { buildID: "b1", status: "error" },
        { buildID: "b0", status: other },
      ];
      server.scripted.set(template, () => ({ status: 200, body: { templateID: "t1", builds } }));
      assert.equal((await aenv(["pull", "img"], io())).code, 1);
      assert.equal(removed.length, other === "error" ? 1 : 0, other);
    }
    if (whole !== undefined) server.scripted.set(template, whole);
  });

  it("hands on the login of a registry, its password from the environment or standard input", async () => {
    script([], { status: "ready" });
    const fromEnv = io();
    fromEnv.env.AENV_REGISTRY_PASSWORD = "pass word";
    await aenv(["pull", "img", "--username", "me"], fromEnv);
    const fromInput = io();
    fromInput.stdin.end("typed\nrest");
    await aenv(["pull", "img", "-u", "me"], fromInput);
    const logins = server.seen.filter(({ path }) => path === `/v2${BUILD}`).map(({ body }) => body.fromImageRegistry);
    const login = { type: "registry", username: "me" };
    assert.deepEqual(logins.slice(-2), [
      { ...login, password: "pass word" },
      { ...login, password: "typed" },
    ]);
    const empty = io();
    empty.stdin.end();
    assert.equal((await aenv(["pull", "img", "-u", "me"], empty)).code, 2);
  });

  it("stops waiting when interrupted, and says that the server goes on", async () => {
    script([], { status: "building" });
    const terminal = io();
    const done = aenv(["pull", "img"], terminal);
    await terminal.shows("stderr", "downloading");
    terminal.signal("SIGINT");
    const result = await done;
    assert.equal(result.code, 130);
    assert.match(result.stderr, /goes on in the server\nhint: /);
    assert.equal(terminal.listeners("SIGINT"), 0);
  });

  it("outlives a server that is away for a moment", async () => {
    script([], { status: "ready" });
    const route = `GET ${BUILD}/status`;
    const ready = server.scripted.get(route);
    let calls = 0;
    server.scripted.set(route, (seen) => {
      calls += 1;
      return calls < 3 ? { status: 503, body: { code: 503, message: "restarting" } } : ready?.(seen);
    });
    assert.equal((await aenv(["pull", "img"], io())).code, 0);
    assert.equal(calls, 3);
  });

  it("names a template after its image", () => {
    assert.equal(defaultName("registry.local:5000/team/My.Tool:1.2@sha256:00"), "my-tool");
    assert.equal(defaultName("debian"), "debian");
    assert.throws(() => defaultName("///"), /no name/);
  });
});

describe("progress", () => {
  const base = { phase: "downloading", doneBytes: 0, totalBytes: 0, layersDone: 0, layersTotal: 0 };

  it("leaves out what is not known", () => {
    assert.equal(describeProgress(base, 1000), "downloading, 1s");
    assert.equal(describeProgress({ ...base, doneBytes: 2048 }, 61_000), "downloading 2 KiB, 1m 1s");
  });

  it("says something plain for a new phase and every few seconds only", async () => {
    let nowMs = 0;
    const out = io();
    const display = new ProgressDisplay(out, () => nowMs);
    for (; nowMs < 11_000; nowMs += 500) await display.update({ ...base, doneBytes: nowMs });
    await display.update({ ...base, phase: "converting" });
    assert.equal(out.text("stderr").trim().split("\n").length, 4);
  });
});
