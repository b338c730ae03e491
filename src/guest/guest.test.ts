import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer, type IncomingHttpHeaders, type ServerResponse } from "node:http";
import { json } from "node:stream/consumers";
import { test } from "node:test";
import { AGENT_PORT, Guest, type GuestIdentity } from "./guest.ts";

const ADDRESS = "127.0.0.78";
const PATIENCE_MS = 10_000;
const IDENTITY: GuestIdentity = {
  sandboxId: "i1",
  templateId: "t1",
  generation: 3,
  hostname: "i1",
  env: {},
  defaultUser: "user",
  initKey: "new",
};

/** What an agent that knows the key "new" is told meanwhile. */
async function toldTo(tell: (guest: Guest) => Promise<void>): Promise<readonly Readonly<Record<string, unknown>>[]> {
  const told: Readonly<Record<string, unknown>>[] = [];
  const server = createServer(async (request, response) => {
    told.push((await json(request)) as (typeof told)[number]);
    response.writeHead(request.headers["x-init-key"] === "new" ? 204 : 401).end();
  });
  await new Promise<void>((resolve) => server.listen(AGENT_PORT, ADDRESS, resolve));
  const guest = new Guest(ADDRESS, PATIENCE_MS);
  try {
    await tell(guest);
  } finally {
    guest.close();
    server.close();
  }
  return told;
}

test("an init that is said again tells the same generation, another start or another key another one", async () => {
  const told = await toldTo(async (guest) => {
    await guest.init(IDENTITY, "captured");
    await guest.init(IDENTITY, "new");
    await guest.init({ ...IDENTITY, generation: 4 }, "new");
    await guest.init({ ...IDENTITY, sandboxId: "i2" }, "new");
  });
  assert.deepEqual(
    told.map(({ generation }) => generation),
    [3, 3, 3, 4, 3],
  );
  const ids = told.map(({ generationId }) => String(generationId));
  for (const id of ids) assert.match(id, /^[0-9a-f]{32}$/);
  assert.deepEqual(ids.slice(1, 3), [ids[0], ids[0]]);
  assert.equal(new Set(ids).size, 3);
});

test("an idle connection is not probed, which would wake a machine that stands still", async () => {
  await toldTo(async (guest) => {
    await guest.init(IDENTITY, "new");
    const waits = keepAliveWaitsMs();
    assert.equal(waits.length, 1);
    assert.ok((waits[0] ?? 0) > 300_000, `a probe follows in ${waits[0]} ms`);
  });
});

/** Of the connections that this host has to the agent: when the kernel sends the next probe (timers of kind 2). */
function keepAliveWaitsMs(): number[] {
  const peer = Buffer.from(ADDRESS.split(".").map(Number)).readUInt32LE().toString(16).toUpperCase().padStart(8, "0");
  const lines = readFileSync("/proc/net/tcp", "utf8").trim().split("\n").slice(1);
  return lines
    .map((line) => line.trim().split(/\s+/))
    .filter(([, , to, state]) => to === `${peer}:${AGENT_PORT.toString(16).toUpperCase()}` && state === "01")
    .map(([, , , , , timer = ""]) => timer.split(":"))
    .filter(([kind]) => kind === "02")
    .map(([, jiffies = ""]) => Number.parseInt(jiffies, 16) * 10);
}

test("a command is rehearsed before anybody waits, with a token that nobody has", async () => {
  const [ahead, born] = await toldTo(async (guest) => {
    await guest.prepare(IDENTITY, "new");
    await guest.init({ ...IDENTITY, accessToken: "owner's" }, "new");
  });
  assert.deepEqual([ahead?.rehearse, born?.rehearse], [true, undefined]);
  assert.match(String(ahead?.accessToken), /^.{20,}$/);
  assert.equal(born?.accessToken, "owner's");
});

test("an agent that takes no identity is not waited for, which is said", async (t) => {
  const server = createServer(() => {});
  await new Promise<void>((resolve) => server.listen(AGENT_PORT, ADDRESS, resolve));
  const guest = new Guest(ADDRESS, 50);
  t.after(() => {
    guest.close();
    server.close();
    server.closeAllConnections();
  });
  await assert.rejects(guest.init(IDENTITY, "new"), {
    kind: "deadline",
    message: "the sandbox's agent did not answer POST /init within 50 ms",
  });
});

const AWAITED =
  "an entry that is awaited may come as late as it likes, and the wait ends with the connections or when nobody awaits it any more";
test(AWAITED, { timeout: 10_000 }, async (t) => {
  interface Question {
    readonly url: string | undefined;
    readonly headers: IncomingHttpHeaders;
    readonly body: { readonly after: number };
    readonly response: ServerResponse;
  }
  /** By the entry after which another one is awaited: each comes by a connection of its own, in any order. */
  const questions = new Map([1, 2, 3, 4].map((afterUs) => [afterUs, Promise.withResolvers<Question>()]));
  const server = createServer(async (request, response) => {
    const body = (await json(request)) as Question["body"];
    questions.get(body.after)?.resolve({ url: request.url, headers: request.headers, body, response });
  });
  await new Promise<void>((resolve) => server.listen(AGENT_PORT, ADDRESS, resolve));
  const guest = new Guest(ADDRESS, PATIENCE_MS);
  t.after(() => {
    guest.close();
    server.close();
    server.closeAllConnections();
  });
  const leaving = new AbortController();
  const { signal } = leaving;
  const together = [1, 2, 3];
  const awaited = together.map((afterUs) => guest.awaitEntry("new", { afterUs, signal }));
  const refused = Promise.all(awaited.slice(1).map((each) => assert.rejects(each)));
  const [first] = await Promise.all(together.map((afterUs) => questions.get(afterUs)?.promise));
  assert.ok(first);
  assert.deepEqual([first.url, first.headers["x-init-key"]], ["/telemetry", "new"]);
  assert.deepEqual(first.body, { after: 1, await: true });
  first.response.writeHead(204).end();
  await awaited[0];
  leaving.abort();
  await refused;
  const last = assert.rejects(guest.awaitEntry("new", { afterUs: 4, signal: new AbortController().signal }));
  await questions.get(4)?.promise;
  guest.close();
  await last;
});
