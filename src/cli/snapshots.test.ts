import assert from "node:assert/strict";
import { after, beforeEach, describe, it } from "node:test";
import { aenv, TestIo } from "./testing/run.ts";
import { KEY, ServerDouble } from "./testing/server.ts";

let server: ServerDouble;
after(() => server?.[Symbol.asyncDispose]());
beforeEach(async () => {
  server ??= await ServerDouble.start();
  server.scripted.clear();
  server.sandboxes.clear();
});

function io(): TestIo {
  const made = new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY } });
  made.stdin.end();
  return made;
}

function answer(call: string, status: number, body?: unknown): void {
  server.scripted.set(call, () => ({ status, body }));
}

/** As `GET /snapshots` shows one. */
function row(snapshotID: string, lineage: object, more: object = {}): object {
  const [called = ""] = snapshotID.split(":");
  const times = { createdAt: "2030-01-02T03:04:05.000Z", sizeBytes: 16 * 1024 * 1024 };
  const names = called.includes("/") ? [called] : [];
  return { snapshotID, names, templateID: `t-${called}`, buildCount: 1, ...times, lineage, ...more };
}

describe("snapshot", () => {
  it("asks for one with a name or without, and prints what start takes", async () => {
    const { sandboxID: id } = server.add();
    answer(`POST /sandboxes/${id}/snapshots`, 201, row("default/ready:v2", { snapshot: "s1" }));
    assert.deepEqual(
      await aenv(["snapshot", id, "--name", "ready:v2"], io()).then(({ code, stdout }) => [code, stdout]),
      [0, "default/ready:v2\n"],
    );
    assert.deepEqual(server.seen.at(-1)?.body, { name: "ready:v2" });
    const json = await aenv(["snapshot", id, "--json"], io());
    assert.equal(JSON.parse(json.stdout).snapshotID, "default/ready:v2");
    assert.deepEqual(server.seen.at(-1)?.body, {});
  });

  it("of a paused sandbox ends with the code of a conflict", async () => {
    const { sandboxID: id } = server.add("paused");
    answer(`POST /sandboxes/${id}/snapshots`, 409, { code: 409, message: `Sandbox "${id}" is paused` });
    const result = await aenv(["snapshot", id], io());
    assert.deepEqual([result.code, result.stdout, result.stderr], [4, "", `aenv: Sandbox "${id}" is paused\n`]);
  });
});

describe("snapshots", () => {
  it("lists every page by its filters, as a table, as JSON and as what start takes", async () => {
    const all = Array.from({ length: 150 }, (_, at) =>
      row(`default/n${at}:default`, { snapshot: `s${at}`, sandboxID: "i1" }),
    );
    server.scripted.set("GET /snapshots", ({ query }) => {
      assert.deepEqual([query.get("sandboxID"), query.get("name")], ["i1", "a:v1"]);
      const from = Number(query.get("nextToken") ?? 0);
      return { status: 200, body: all.slice(from, from + 100), headers: from === 0 ? { "x-next-token": "100" } : {} };
    });
    const argv = ["snapshots", "ls", "--sandbox", "i1", "--name", "a:v1"];
    assert.deepEqual(JSON.parse((await aenv([...argv, "--json"], io())).stdout), all);
    const quiet = (await aenv([...argv, "-q"], io())).stdout.trim().split("\n");
    assert.deepEqual([quiet.length, quiet[0]], [150, "default/n0:default"]);
    const [title, first] = (await aenv(argv, io())).stdout.split("\n");
    assert.match(title ?? "", /^SNAPSHOT +CAPTURED FROM +SIZE +CREATED$/);
    assert.match(first ?? "", /^default\/n0:default +i1 +16 MiB +2030-/);
  });

  it("deletes by what it shows, and says what cannot be", async () => {
    answer("GET /snapshots", 200, [row("default/a:v1", { snapshot: "s1" })]);
    answer("DELETE /templates/default%2Fa%3Av1", 204);
    answer("DELETE /templates/b", 400, { code: 400, message: "template 'b' is used by 1 sandboxes" });
    const result = await aenv(["snapshots", "rm", "default/a:v1", "b"], io());
    assert.deepEqual([result.code, result.stdout], [2, "Deleted snapshot default/a:v1.\n"]);
    assert.match(result.stderr, /^aenv: template 'b' is used by 1 sandboxes\n/);
  });

  it("deletes no template", async () => {
    answer("GET /snapshots", 200, []);
    answer("DELETE /templates/base", 204);
    const result = await aenv(["snapshots", "rm", "base"], io());
    assert.deepEqual([result.code, result.stdout], [3, ""]);
    assert.match(result.stderr, /^aenv: there is no snapshot 'base'\n/);
  });
});

describe("tree", () => {
  /** base ─ i1 ─ ready (captured) ─ i2 (paused) ─ i3 (fork), and what was captured from sandboxes that are gone. */
  function scene(): void {
    const [i1, i2, i3] = [server.add(), server.add("paused"), server.add()].map((record) => record.sandboxID) as [
      string,
      string,
      string,
    ];
    const lineages = [{ snapshot: "base1" }, { snapshot: "r1" }, { snapshot: "r1", forkedFrom: i2 }];
    const records = [i1, i2, i3].map((id, at) => ({ ...server.sandboxes.get(id), lineage: lineages[at] }));
    answer("GET /v2/sandboxes", 200, records);
    answer("GET /templates", 200, [
      { templateID: "t-base", names: ["base"], buildCount: 1, lineage: { snapshot: "base1" } },
      { templateID: "t-idle", names: ["idle"], buildCount: 1, lineage: { snapshot: "idle1" } },
      { templateID: "t-new", names: ["new"], buildCount: 1 },
    ]);
    answer("GET /snapshots", 200, [
      row("default/ready:v2", { snapshot: "r2", parent: "base1", sandboxID: "igone" }, { buildCount: 2 }),
      row("unnamed0000000000000:default", { snapshot: "u1", parent: "lost", sandboxID: "igone2" }),
    ]);
    answer("GET /templates/t-default%2Fready", 200, {
      templateID: "t-default/ready",
      names: ["ready"],
      builds: [
        {
          buildID: "b2",
          status: "ready",
          tags: ["v2"],
          lineage: { snapshot: "r2", parent: "base1", sandboxID: "igone" },
        },
        { buildID: "b1", status: "ready", tags: [], lineage: { snapshot: "r1", parent: "base1", sandboxID: i1 } },
      ],
    });
  }

  it("draws what came of what; what has gone in between is left out", async () => {
    scene();
    const [i1, i2, i3] = [...server.sandboxes.keys()];
    const { stdout, code } = await aenv(["tree"], io());
    assert.equal(code, 0);
    assert.equal(
      stdout,
      [
        "base  template",
        "├─ ready:v2  snapshot",
        `└─ ${i1}  running`,
        "   └─ ready  snapshot, replaced",
        `      └─ ${i2}  paused`,
        `         └─ ${i3}  running`,
        "lost  snapshot, deleted",
        "└─ unnamed0000000000000  snapshot",
        "",
      ].join("\n"),
    );
  });

  it("of one shows what it comes from and leads to, by id or name; as JSON too", async () => {
    scene();
    const [i1, i2, i3] = [...server.sandboxes.keys()];
    const line = (of: string) => aenv(["tree", of], io()).then(({ stdout }) => stdout.trimEnd().split("\n"));
    assert.deepEqual(await line(i3 ?? ""), [
      "base  template",
      `└─ ${i1}  running`,
      "   └─ ready  snapshot, replaced",
      `      └─ ${i2}  paused`,
      `         └─ ${i3}  running`,
    ]);
    for (const name of ["default/ready:v2", "ready:v2", "r2"]) {
      assert.deepEqual(await line(name), ["base  template", "└─ ready:v2  snapshot"], name);
    }
    const [base] = JSON.parse((await aenv(["tree", i2 ?? "", "--json"], io())).stdout);
    assert.deepEqual([base.kind, base.name, base.id, base.children.length], ["template", "base", "base1", 1]);
    assert.equal(base.children[0].children[0].children[0].children[0].id, i3);
    const none = await aenv(["tree", "nobody"], io());
    assert.deepEqual([none.code, none.stdout], [3, ""]);
  });

  it("is drawn however deep it is", async () => {
    const depth = 10_000;
    const rows = Array.from({ length: depth }, (_, at) =>
      row(`t${at}:default`, { snapshot: `s${at}`, ...(at > 0 && { parent: `s${at - 1}`, sandboxID: "igone" }) }),
    );
    for (const list of ["/v2/sandboxes", "/templates"]) answer(`GET ${list}`, 200, []);
    answer("GET /snapshots", 200, rows);
    const last = (of: string[]) => aenv(["tree", ...of], io()).then(({ stdout }) => stdout.trimEnd().split("\n"));
    const deepest = `t${depth - 1}`;
    for (const lines of [await last([]), await last([`${deepest}:default`])]) {
      assert.equal(lines.length, depth);
      assert.equal(lines[3], "      └─ t3  snapshot");
      assert.equal(lines.at(-1), `[${depth - 1}] └─ ${deepest}  snapshot`);
    }
    let [node] = JSON.parse((await aenv(["tree", "--json"], io())).stdout);
    while (node.children.length > 0) [node] = node.children;
    assert.equal(node.name, deepest);
  });

  it("of nothing prints nothing", async () => {
    for (const list of ["/v2/sandboxes", "/templates", "/snapshots"]) answer(`GET ${list}`, 200, []);
    assert.deepEqual(await aenv(["tree"], io()).then(({ code, stdout }) => [code, stdout]), [0, ""]);
  });
});
