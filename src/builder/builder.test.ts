import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { MemoryCatalog, type RecordKind, Templates, type WriteOptions } from "#catalog";
import { AenvError, type BuildLogEntry, DEFAULT_RESOURCES, type ImageSource } from "#domain";
import { silentLogger } from "#lib/log";
// The fake node is the cluster's, which the builder otherwise does not know.
import { FakeNode } from "../cluster/testing.ts";
import type { BuildPlan, BuildTicket } from "./builder.ts";
import { ImageBuilder } from "./image-builder.ts";

const SOURCE: ImageSource = { kind: "registry", reference: "debian:12" };

/** A catalog that has no room for logs that hold some words. */
class FullCatalog extends MemoryCatalog {
  /** Writes of logs that fail when their last entry says this. */
  unwritable: RegExp | undefined;
  /** Writes of builds and templates, with whether they were on stable storage when they returned. */
  readonly written: string[] = [];

  override async put<T>(
    kind: RecordKind<T>,
    key: string,
    value: T,
    options?: WriteOptions,
  ): Promise<number | undefined> {
    const last = kind.name === "build-log" ? (value as BuildLogEntry[]).at(-1)?.message : undefined;
    if (last !== undefined && this.unwritable?.test(last)) throw new Error(`no space left for '${last}'`);
    const revision = await super.put(kind, key, value, options);
    const { status = "tags", snapshot } = value as { status?: string; snapshot?: unknown };
    if (kind.name === "build" || kind.name === "template") {
      const what = snapshot === undefined ? status : `${status} with its snapshot`;
      this.written.push(`${kind.name}: ${what}${options?.durable === true ? ", durably" : ""}`);
    }
    return revision;
  }
}

let node: FakeNode;
let catalog: FullCatalog;
let templates: Templates;
let builder: ImageBuilder;
let published: number;

beforeEach(() => {
  node = new FakeNode();
  catalog = new FullCatalog();
  published = 0;
  restart();
});

function restart(): void {
  templates = new Templates(catalog, () => node.nowMs);
  const onPublished = async () => {
    published += 1;
  };
  builder = new ImageBuilder({ node, templates, logger: silentLogger, nowMs: () => node.nowMs, onPublished });
}

const request = (name: string, ...tags: string[]) => builder.request({ name, tags, resources: DEFAULT_RESOURCES });
const PLAN: BuildPlan = { source: SOURCE, commands: {} };
const start = ({ build }: BuildTicket, plan = PLAN) => builder.start(build.templateId, build.id, plan);
const view = ({ build }: BuildTicket) => builder.view(build.templateId, build.id);

async function ended(ticket: BuildTicket): Promise<Awaited<ReturnType<typeof view>>> {
  for (;;) {
    const seen = await view(ticket);
    if (seen.build.status === "ready" || seen.build.status === "error") return seen;
    await new Promise(setImmediate);
  }
}

test("a build goes from waiting over building to ready and is published under its tags", async () => {
  node.imageConfig = { env: { LANG: "C" }, entrypoint: [], cmd: [], user: "app:staff", workingDir: "/srv" };
  const ticket = await request("Base:v1", "extra");
  assert.deepEqual(ticket.tags, ["v1", "extra"]);
  assert.equal((await view(ticket)).progress.phase, "waiting");
  await assert.rejects(templates.resolve("base:v1"), { kind: "not-found" });

  const pull = node.holdNext("pullImage");
  await start(ticket);
  await pull.entered;
  const during = await view(ticket);
  assert.equal(during.build.status, "building");
  assert.deepEqual(during.progress, {
    phase: "downloading",
    doneBytes: 5,
    totalBytes: 10,
    layersDone: 1,
    layersTotal: 2,
  });
  assert.equal(during.log[0]?.message, "FROM debian:12");
  pull.open();

  const { build, log, progress } = await ended(ticket);
  assert.equal(build.status, "ready");
  assert.equal(progress.phase, "done");
  assert.ok(log.length >= 3);
  for (const tag of ["v1", "extra"]) assert.equal((await templates.resolve(`base:${tag}`)).build.id, build.id);
  const { snapshot } = await templates.resolve("base:v1");
  assert.equal(snapshot.defaultUser, "app");
  assert.equal(snapshot.defaultWorkdir, "/srv");
  assert.deepEqual(snapshot.env, { LANG: "C" });
  await builder.close();
  assert.equal(node.held.size, 0);
  assert.equal(published, 1);
});

test("a template is on stable storage before anybody is told: its snapshot, then the tags, then that it is ready", async () => {
  const ticket = await request("base");
  const capture = node.holdNext("makeSnapshot");
  await start(ticket);
  await capture.entered;
  catalog.written.length = 0;
  capture.open();
  await ended(ticket);
  assert.deepEqual(catalog.written, [
    "build: building with its snapshot, durably",
    "template: tags, durably",
    "build: ready with its snapshot, durably",
  ]);
});

test("what is started is asked of the node and logged in E2B's words; output has a limit, what comes after it has not", async () => {
  const commands = { startCmd: "serve", readyCmd: "check" };
  const output = (line: string) => ({ kind: "output", stream: "stdout", line }) as const;
  node.startEvents = [
    { kind: "starting" },
    { kind: "waiting", readyCmd: "check" },
    ...Array.from({ length: 1000 }, (_, at) => output(`line ${at}`)),
    { kind: "ready" },
  ];
  const ticket = await request("started");
  const gate = node.holdNext("makeSnapshot");
  await start(ticket, { source: SOURCE, commands });
  await gate.entered;
  gate.open();
  const { build, log } = await ended(ticket);
  assert.equal(build.status, "ready");
  assert.deepEqual(node.commands, [commands]);
  const messages = log.map(({ message }) => message);
  assert.equal(messages.filter((message) => message.startsWith("[start] [stdout]: line ")).length, 300);
  const rest = messages.filter((message) => !message.startsWith("[start] [stdout]"));
  assert.deepEqual(rest.slice(3), [
    "Running start command",
    "Waiting for template to be ready: check",
    "[start] more output is not shown",
    "Template is ready",
    "Build finished, tagged default",
  ]);
});

test("a log that cannot be written while a template starts fails the build when the start is over, and leaves nothing", async () => {
  node.startEvents = [{ kind: "starting" }, { kind: "waiting", readyCmd: "check" }, { kind: "ready" }];
  catalog.unwritable = /^Running start/;
  const ticket = await request("started");
  const gate = node.holdNext("makeSnapshot");
  await start(ticket);
  await gate.entered;
  // Long enough for a rejection that nobody has taken to end the process.
  for (let turn = 0; turn < 10; turn += 1) await new Promise(setImmediate);
  assert.equal((await view(ticket)).build.status, "building");
  gate.open();
  const { build } = await ended(ticket);
  assert.deepEqual(build.reason, {
    message: "no space left for 'Running start command'",
    kind: "internal",
    step: "finalize",
  });
  await builder.close();
  assert.equal(node.snapshots.size, 0);
  assert.equal(node.held.size, 0);
});

test("a log that cannot be written does not hide why a start failed, nor what became of a build", async () => {
  node.startEvents = [{ kind: "starting" }];
  catalog.unwritable = /^Running start|^start command failed/;
  node.failNext("makeSnapshot", new AenvError("invalid", "start command failed: exit status 3"));
  const failed = await request("failed");
  await start(failed);
  const { build } = await ended(failed);
  assert.deepEqual(build.reason, { message: "start command failed: exit status 3", kind: "invalid", step: "finalize" });

  catalog.unwritable = /^Build finished/;
  const done = await request("done");
  await start(done);
  assert.equal((await ended(done)).build.status, "ready");
  await builder.close();
  assert.equal(node.snapshots.size, 1);
  assert.equal(node.held.size, 0);
});

test("a failed build says why and where, keeps the old one, and holds nothing", async () => {
  const first = await request("base");
  await start(first);
  await ended(first);
  for (const [method, step] of [
    ["pullImage", "base"],
    ["makeSnapshot", "finalize"],
  ] as const) {
    node.failNext(method, new AenvError("unavailable", "the registry is down", { hint: "try later" }));
    const ticket = await request("base");
    await start(ticket);
    const { build, log, progress } = await ended(ticket);
    assert.equal(build.status, "error");
    assert.deepEqual(build.reason, { message: "the registry is down; try later", kind: "unavailable", step });
    assert.equal(log.at(-1)?.level, "error");
    assert.equal(progress.phase, "failed");
  }
  assert.equal((await templates.resolve("base")).build.id, first.build.id);
  await builder.close();
  assert.equal(node.held.size, 0);
  assert.equal(node.snapshots.size, 1);
});

test("only a waiting build starts, and only one that is there", async () => {
  const ticket = await request("base");
  const gate = node.holdNext("pullImage");
  await start(ticket);
  await assert.rejects(start(ticket), { kind: "invalid", message: "build is not in waiting state" });
  gate.open();
  await ended(ticket);
  await assert.rejects(start(ticket), { kind: "invalid" });
  await assert.rejects(builder.start(ticket.template.id, "nope", PLAN), { kind: "invalid", field: "buildID" });
  await assert.rejects(builder.view("nope", ticket.build.id), { kind: "not-found" });
});

test("close stops what runs and awaits it; the builds fail with a reason", async () => {
  const tickets = [await request("a"), await request("b"), await request("c")];
  const gates = [node.holdNext("pullImage"), node.holdNext("makeSnapshot")];
  for (const ticket of tickets.slice(0, 2)) await start(ticket);
  await gates[0]?.entered;
  await gates[1]?.entered;
  const [, , third] = tickets;
  assert.ok(third);
  await start(third);
  await builder.close();
  for (const ticket of tickets) {
    const { build } = await view(ticket);
    assert.equal(build.status, "error");
    assert.match(build.reason?.message ?? "", /server was stopped/);
  }
  assert.equal(node.held.size, 0);
  await assert.rejects(start(await request("d")), { kind: "unavailable" });
});

test("a build whose template is deleted meanwhile leaves nothing", async () => {
  const ticket = await request("base");
  const gate = node.holdNext("makeSnapshot");
  await start(ticket);
  await gate.entered;
  await templates.remove(ticket.template);
  gate.open();
  await builder.cancel(ticket.template.id);
  assert.equal(node.snapshots.size, 0);
  assert.equal(node.held.size, 0);
});

test("after a crash an unfinished build is an error, a published one ready, a waiting one waits", async () => {
  const [lost, done, waiting] = [await request("lost"), await request("done"), await request("waiting")];
  const gate = node.holdNext("pullImage");
  await start(lost);
  await gate.entered;
  await start(done);
  await ended(done);
  // As it is when the process dies between the tags and the last word.
  const record = await templates.build(done.build.templateId, done.build.id);
  assert.ok(record);
  await templates.updateBuild(record, (build) => ({ ...build, status: "building" }));
  restart();
  await builder.recover();
  const { build } = await view(lost);
  assert.equal(build.status, "error");
  assert.match(build.reason?.message ?? "", /server was stopped/);
  assert.equal((await view(done)).build.status, "ready");
  assert.equal((await view(waiting)).build.status, "waiting");
  assert.equal((await templates.resolve("done")).build.id, done.build.id);
});
