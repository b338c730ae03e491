import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { Agent, request } from "node:http";
import { join } from "node:path";
import { describe, it } from "node:test";
import { NotFoundError, Sandbox, SandboxError, type SnapshotInfo } from "e2b";
import { type Answer, assertOwnTokensOnly, call as callOf, type Detail, detailOf } from "./calls.ts";
import { Cli } from "./cli.ts";
import { assertNothingLost } from "./host.ts";
import { Live, SERVICE_PORT } from "./live.ts";
import { newSandbox, output, useServer } from "./sdk.ts";
import { sharedServer } from "./server.ts";

const FORKS = 12;
const BOOT_ID = "cat /proc/sys/kernel/random/boot_id";
const WHO = "echo $A,$B,$E2B_SANDBOX_ID,$(hostname)";

async function call<T = { message: string }>(method: string, path: string, body?: unknown): Promise<Answer<T>> {
  return callOf<T>(await sharedServer(), method, path, body);
}

async function lineageOf(id: string): Promise<Record<string, string>> {
  return (await detailOf(await sharedServer(), id)).lineage as Record<string, string>;
}

/** A sandbox of a snapshot, ended with its scope. */
async function startFrom(snapshotId: string, envs: Record<string, string> = {}): Promise<Sandbox & AsyncDisposable> {
  const sandbox = await Sandbox.create(snapshotId, { timeoutMs: 120_000, envs });
  return Object.assign(sandbox, { [Symbol.asyncDispose]: async () => void (await Sandbox.kill(sandbox.sandboxId)) });
}

interface SnapshotRow {
  readonly snapshotID: string;
  readonly memory: boolean;
}

/** All pages of a list. */
async function pagesOf(options: Parameters<typeof Sandbox.listSnapshots>[0]): Promise<SnapshotInfo[][]> {
  const pages: SnapshotInfo[][] = [];
  for (const paginator = Sandbox.listSnapshots(options); paginator.hasNext; ) pages.push(await paginator.nextItems());
  return pages;
}

async function snapshotFolders(): Promise<string[]> {
  return readdirSync(join((await sharedServer()).dataDir, "snapshots")).sort();
}

/** One connection through the edge to a service in the sandbox, kept over several requests. */
class Kept implements AsyncDisposable {
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 1 });
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly ports = new Set<number | undefined>();

  constructor(url: string, { sandboxId }: Sandbox) {
    this.#url = url;
    this.#headers = { "E2b-Sandbox-Id": sandboxId, "E2b-Sandbox-Port": String(SERVICE_PORT) };
  }

  async ask(): Promise<number | undefined> {
    const done = Promise.withResolvers<number | undefined>();
    const asked = request(this.#url, { agent: this.#agent, headers: this.#headers }, (answer) => {
      this.ports.add(asked.socket?.localPort);
      answer.resume().on("end", () => done.resolve(answer.statusCode));
    });
    asked.on("error", done.reject).end();
    return await done.promise;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#agent.destroy();
  }
}

describe("snapshots, by the stock JavaScript SDK", { timeout: 600_000 }, () => {
  it("hold processes, memory and files; the source goes on, reachable and connected all the time (SNAP-07, SNAP-08)", async () => {
    await using source = await newSandbox({ envs: { A: "1", B: "2" }, metadata: { of: "source" } });
    const server = await sharedServer();
    const live = await Live.start(source);
    await source.files.write("/dev/shm/state", "in memory");
    await using kept = new Kept(server.url, source);
    assert.equal(await kept.ask(), 200);
    await live.resync();
    const made = await source.createSnapshot();
    assert.match(made.snapshotId, /^[a-z0-9]{20}:default$/);
    assert.deepEqual(made.names, []);
    await using child = await startFrom(made.snapshotId, { A: "3" });
    await live.in(child).assertGoesOn();
    await live.assertGoesOn();
    assert.equal(await kept.ask(), 200);
    assert.equal(kept.ports.size, 1, "the connection into the source was not kept");
    await live.resync();
    assert.equal(await child.files.read("/dev/shm/state"), "in memory");
    // Nothing of what the source was given at its create, in whatever way a process is started.
    assert.equal(await output(child, WHO), `3,,${child.sandboxId},${child.sandboxId}`);
    const leaked = "tr '\\0' '\\n' < /proc/self/environ; env; sudo -n env; bash -lc env";
    assert.equal(/^B=/m.test(await output(child, leaked)), false);
    assert.equal(await output(source, WHO), `1,2,${source.sandboxId},${source.sandboxId}`);
    const info = await child.getInfo();
    assert.deepEqual(info.metadata, {});
    assert.equal(`${info.templateId}:default`, made.snapshotId);
    assert.equal(await output(child, "whoami; pwd"), "user\n/home/user");
    await child.kill();
    assert.equal(await Sandbox.deleteSnapshot(made.snapshotId), true);
    assert.equal(await Sandbox.deleteSnapshot(made.snapshotId), false);
    await live.assertGoesOn();
  });

  it("of snapshots, of forks and of forks of forks need nothing of those before (SNAP-14)", async () => {
    await using a = await newSandbox();
    await a.files.write("who", "a");
    const ofA = await a.createSnapshot({ name: "chain" });
    assert.deepEqual([ofA.snapshotId, ofA.names], ["default/chain:default", ["default/chain"]]);
    await using b = await startFrom("chain");
    await b.files.write("who", "b");
    const [c] = await b.fork({ count: 1 });
    assert.ok(c instanceof Sandbox);
    await c.files.write("who", "c");
    const [d] = await c.fork({ count: 1 });
    assert.ok(d instanceof Sandbox);
    await d.files.write("more", "d");
    const ofD = await d.createSnapshot({ name: "chain:deep" });
    const again = await a.createSnapshot({ name: "chain" });
    assert.equal(again.snapshotId, ofA.snapshotId);
    assert.deepEqual(
      [(await lineageOf(c.sandboxId)).forkedFrom, (await lineageOf(d.sandboxId)).forkedFrom],
      [b.sandboxId, c.sandboxId],
    );
    const { snapshot: startedFrom } = await lineageOf(b.sandboxId);
    const row = (await call<Detail[]>("GET", "/snapshots?name=chain:deep")).body[0];
    assert.deepEqual(row?.lineage, { ...(row?.lineage as object), parent: startedFrom, sandboxID: d.sandboxId });

    const tree = (await new Cli(await sharedServer()).run(["tree", a.sandboxId])).stdout;
    for (const { sandboxId } of [a, b, c, d]) assert.ok(tree.includes(sandboxId), tree);
    assert.match(tree, /chain:deep {2}snapshot$/m);

    for (const one of [a, b, c, d]) await one.kill();
    assert.equal(await Sandbox.deleteSnapshot("chain:default"), true);
    await using last = await startFrom(ofD.snapshotId);
    assert.equal(await output(last, "cat who more"), "cd");
    await assert.rejects(Sandbox.deleteSnapshot(ofD.snapshotId), SandboxError);
    assert.equal(await output(last, "cat who more"), "cd");
    await last.kill();
    assert.equal(await Sandbox.deleteSnapshot(ofD.snapshotId), true);
    assert.deepEqual(await pagesOf({ name: "chain" }), [[]]);
  });

  it("of the files alone are booted, each for itself; the source goes on (SNAP-13)", async () => {
    await using source = await newSandbox({ envs: { A: "mine" } });
    const boot = await output(source, BOOT_ID);
    await source.commands.run("exec sleep 86400", { background: true, timeoutMs: 0 });
    const sums = await output(source, "head -c 30M /dev/urandom > large; sudo rm /etc/issue; sha256sum large");
    const path = `/sandboxes/${source.sandboxId}/snapshots`;
    const { status, body: alone } = await call<SnapshotRow>("POST", path, { name: "alone", memory: false });
    assert.deepEqual([status, alone.memory], [201, false]);
    assert.equal(await output(source, `pgrep -xc sleep; ${BOOT_ID}`), `1\n${boot}`);
    await source.files.write("large", "later");

    await using first = await startFrom("alone", { B: "own" });
    await using second = await startFrom(alone.snapshotID);
    const boots = new Set([boot]);
    for (const child of [first, second]) {
      const look = 'sha256sum large; test -e /etc/issue || echo removed; pgrep -xc sleep; echo "A=$A"';
      assert.equal(await output(child, look), `${sums}\nremoved\n0\nA=`);
      boots.add(await output(child, BOOT_ID));
    }
    assert.equal(boots.size, 3);
    assert.equal(await output(first, "whoami; pwd; echo $B"), "user\n/home/user\nown");
    await first.commands.run("exec sleep 86400", { background: true, timeoutMs: 0 });
    const whole = await first.createSnapshot();
    await using grandchild = await startFrom(whole.snapshotId);
    assert.equal(await output(grandchild, "sha256sum large; pgrep -xc sleep"), `${sums}\n1`);
    for (const each of [first, second, grandchild]) await each.kill();
    for (const id of [whole.snapshotId, "alone"]) assert.equal(await Sandbox.deleteSnapshot(id), true);
    await assertNothingLost(await sharedServer());
  });

  it("are listed by sandbox, name and pages, and outlive the server's death", async () => {
    await using source = await newSandbox();
    const made = [];
    for (const name of ["listed-1", "listed-2", undefined]) {
      await source.files.write("at", String(name));
      made.unshift(await source.createSnapshot(name === undefined ? {} : { name }));
    }
    const { sandboxId } = source;
    const server = await sharedServer();
    await server.killService("aenvd");
    assert.deepEqual(await pagesOf({ sandboxId }), [made]);
    assert.deepEqual(await pagesOf({ sandboxId, limit: 2 }), [made.slice(0, 2), made.slice(2)]);
    assert.deepEqual(await pagesOf({ name: "listed-1" }), [made.slice(2)]);
    assert.deepEqual(await pagesOf({ sandboxId: "i0000000000000000000" }), [[]]);
    const templates = (await call<{ names: string[] }[]>("GET", "/templates")).body.flatMap(({ names }) => names);
    assert.equal(templates.includes("listed-1"), false);
    await using child = await startFrom("listed-1");
    assert.equal(await child.files.read("at"), "listed-1");
    await child.kill();
    for (const { snapshotId } of made) assert.equal(await Sandbox.deleteSnapshot(snapshotId), true);
  });

  it("of which children open to their own token only (SNAP-05)", async () => {
    await using source = await newSandbox();
    const { snapshotId } = await source.createSnapshot();
    await using child = await startFrom(snapshotId);
    await assertOwnTokensOnly(await sharedServer(), [source.sandboxId, child.sandboxId]);
    await child.kill();
    assert.equal(await Sandbox.deleteSnapshot(snapshotId), true);
  });

  it("are refused for what cannot be one, with nothing half made (SNAP-17)", async () => {
    await using source = await newSandbox();
    const path = `/sandboxes/${source.sandboxId}/snapshots`;
    const before = await snapshotFolders();
    for (const body of [{ name: "other/x" }, { name: "a b" }, { name: 1 }]) {
      assert.equal((await call("POST", path, body)).status, 400, JSON.stringify(body));
    }
    assert.equal((await call("POST", path, { name: "base" })).status, 409);
    await source.pause();
    assert.equal((await call("POST", path, {})).status, 409);
    await source.kill();
    await assert.rejects(source.createSnapshot(), NotFoundError);
    assert.deepEqual(await snapshotFolders(), before);
  });

  it("at the same time as others, a pause and a kill: each is answered, and the kill wins", async () => {
    useServer(await sharedServer());
    const { sandboxId } = await Sandbox.create("base", { timeoutMs: 120_000 });
    const path = `/sandboxes/${sandboxId}/snapshots`;
    const both = await Promise.all([call<{ snapshotID: string }>("POST", path, {}), call("POST", path, {})]);
    assert.deepEqual(both.map(({ status }) => status).sort(), [201, 409]);
    const third = call<{ snapshotID: string }>("POST", path, {});
    const paused = call("POST", `/sandboxes/${sandboxId}/pause`, {});
    const killed = call("DELETE", `/sandboxes/${sandboxId}`);
    assert.ok([201, 404].includes((await third).status));
    assert.ok([204, 404].includes((await paused).status));
    assert.equal((await killed).status, 204);
    assert.equal((await call("GET", `/sandboxes/${sandboxId}`)).status, 404);
    for (const { status, body } of [both[0], both[1], await third]) {
      if (status === 201) await Sandbox.deleteSnapshot((body as { snapshotID: string }).snapshotID);
    }
  });

  it(`and a fork of ${FORKS} at once: each is itself, with the state of that moment`, async () => {
    await using source = await newSandbox();
    await source.files.write("state", "shared");
    const forks = await source.fork({ count: FORKS });
    try {
      const ids = forks.map((fork) => (fork instanceof Sandbox ? fork.sandboxId : assert.fail(String(fork))));
      assert.equal(new Set(ids).size, FORKS);
      const said = await Promise.all(forks.map((fork) => output(fork as Sandbox, "echo $(hostname) $(cat state)")));
      assert.deepEqual(
        said,
        ids.map((id) => `${id} shared`),
      );
    } finally {
      await Promise.all(forks.map((fork) => (fork instanceof Sandbox ? fork.kill() : undefined)));
    }
  });
});

describe("after all snapshots", { timeout: 60_000 }, () => {
  it("the host holds what the server lists, and the snapshot of every template and no other", async () => {
    const server = await sharedServer();
    await assertNothingLost(server);
    assert.deepEqual((await pagesOf({})).flat(), []);
    const templates = (await call<Detail[]>("GET", "/templates")).body;
    assert.equal((await snapshotFolders()).length, templates.length);
  });
});
