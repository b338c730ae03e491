import assert from "node:assert/strict";
import { readdirSync, readFileSync, realpathSync, statSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as sleep } from "node:timers/promises";
import { MIB } from "#domain";
import { commandLine, processIds } from "#lib/proc";
import { CLAIMS_DIR, serverNetwork } from "#network";
import { connectStore } from "#store";
import { createApi } from "../../scripts/setup/api.ts";
import { dataPaths } from "../../src/config.ts";
import { openCgroups } from "../../src/driver/cgroup/index.ts";
import { slotOfName } from "../../src/network/addresses.ts";
import type { TestServer } from "./start.ts";

/** How many slots a server keeps ready by default. */
const SLOTS_READY = 16;
const SETTLE_MS = 20_000;

/** What a server says it has, or what is there of it on the host: the two must be the same. Sorted ids. */
interface Inventory {
  readonly running: readonly string[];
  readonly paused: readonly string[];
  readonly records: readonly string[];
  /** Sandbox processes of the runtime, by sandbox. */
  readonly sandboxes: readonly string[];
  readonly gofers: readonly string[];
  readonly cgroups: readonly string[];
  readonly bundles: readonly string[];
  readonly uppers: readonly string[];
  readonly checkpoints: readonly string[];
  readonly leases: readonly string[];
  /** Metrics and logs that lie with those of living sandboxes and are of none. */
  readonly strayTelemetry: readonly string[];
  readonly slots: number;
  /** How many the server says it has. */
  readonly ready: { readonly clones: number; readonly copies: number };
}

/** Waits until everything on the host belongs to a sandbox the server lists, or to one of the clones and copies that it says stand
 *  ready, and all of these have their parts; else says what differs. */
export async function assertNothingLost(server: TestServer): Promise<void> {
  const giveUpAtMs = Date.now() + SETTLE_MS;
  for (;;) {
    const { running, paused, ready, ...host } = await inventory(server);
    const both = [...running, ...paused].sort();
    const standing = host.sandboxes.filter((id) => !running.includes(id));
    const copies = standing.filter((id) => paused.includes(id));
    const clones = standing.filter((id) => !paused.includes(id));
    const machines = [...running, ...standing].sort();
    const expected = {
      records: both,
      sandboxes: machines,
      gofers: machines,
      cgroups: machines,
      bundles: machines,
      uppers: machines,
      checkpoints: paused,
      leases: [...both, ...clones].sort(),
      strayTelemetry: [],
      slots: machines.length + (server.config.slotsReady ?? SLOTS_READY),
    };
    try {
      assert.deepEqual(host, expected);
      assert.deepEqual({ clones: clones.length, copies: copies.length }, ready);
      return;
    } catch (error) {
      if (Date.now() > giveUpAtMs) throw error;
    }
    await sleep(50);
  }
}

async function inventory(server: TestServer): Promise<Inventory> {
  const api = createApi(server.url, server.apiKey);
  const list = async (state: "running" | "paused"): Promise<string[]> =>
    (await api.sandboxes(state)).map(({ sandboxID }) => sandboxID).sort();
  const [running, paused] = [await list("running"), await list("paused")];
  const index = indexOf(server);
  const machines = (name: string): string[] => processesNamed(name, `--root=/run/aenv/${index}/r`);
  return {
    running,
    paused,
    records: sandboxRecords(server),
    sandboxes: machines("runsc-sandbox"),
    gofers: machines("runsc-gofer"),
    cgroups: cgroups(index),
    bundles: sandboxesIn(join(server.dataDir, "machines")),
    uppers: sandboxesIn(join(server.dataDir, "uppers")),
    checkpoints: sandboxesIn(join(server.dataDir, "checkpoints")),
    leases: await leases(server),
    strayTelemetry: sandboxesIn(join(server.dataDir, "telemetry", "live")).filter(
      (id) => !running.includes(id) && !paused.includes(id),
    ),
    slots: slotsOf(index),
    ready: {
      clones: await metric(server, 'aenv_ready_machines{kind="clone"}'),
      copies: await metric(server, 'aenv_ready_machines{kind="copy"}'),
    },
  };
}

/** A figure of the server's own metrics, by its name and labels. */
export async function metric({ url, apiKey }: Pick<TestServer, "url" | "apiKey">, name: string): Promise<number> {
  const answer = await fetch(`${url}/metrics`, { headers: { "X-API-Key": apiKey } });
  const line = (await answer.text()).split("\n").find((text) => text.startsWith(`${name} `));
  assert.ok(line !== undefined, `there is no metric ${name}`);
  return Number(line.slice(name.length + 1));
}

/** Which of the host's servers this one is. */
export function indexOf({ dataDir }: Pick<TestServer, "dataDir">): number {
  const path = realpathSync(dataDir);
  const isMine = (name: string): boolean =>
    /^\d+$/.test(name) &&
    (JSON.parse(readFileSync(join(CLAIMS_DIR, name), "utf8")) as { dataDir: string }).dataDir === path;
  const index = readdirSync(CLAIMS_DIR).find(isMine);
  assert.ok(index !== undefined, `no claim of ${dataDir}`);
  return Number(index);
}

/** The process whose end is the end of the sandbox. */
export function sandboxProcess(server: TestServer, id: string): number {
  const bundle = join(server.dataDir, "machines", machineOf(server, id));
  return Number(readFileSync(join(bundle, "pid"), "utf8"));
}

function machineOf({ dataDir }: TestServer, id: string): string {
  const machine = readdirSync(join(dataDir, "machines")).find((name) => sandboxOf(name) === id);
  assert.ok(machine !== undefined, `${id} has no machine`);
  return machine;
}

/** What the host has given a sandbox of its memory, without file cache. */
export function heldMib(server: TestServer, id: string): number {
  const cgroups = openCgroups(`/aenv/${indexOf(server)}`);
  return cgroups.stats(machineOf(server, id)).memoryBytes / MIB;
}

/** How many files the host's processes of a sandbox hold open. */
export function openFiles(id: string): number {
  const processes = processIds().filter((pid) => commandLine(pid).some((arg) => arg.includes(id)));
  return processes.reduce((sum, pid) => sum + readdirSync(`/proc/${pid}/fd`).length, 0);
}

/** Processes of the runtime, by the sandboxes they belong to: one entry for each. */
function processesNamed(name: string, root: string): string[] {
  const found: string[] = [];
  for (const pid of processIds()) {
    const args = commandLine(pid);
    if (args[0] === name && args.includes(root))
      found.push(sandboxOf(args.find((arg) => /^i[a-z0-9]{19}-/.test(arg)) ?? bundleOf(args)));
  }
  return found.sort();
}

function bundleOf(args: readonly string[]): string {
  const at = args.findIndex((arg) => arg.startsWith("--bundle"));
  const value = args[at]?.startsWith("--bundle=") ? args[at]?.slice("--bundle=".length) : args[at + 1];
  return value?.split("/").at(-1) ?? "unknown";
}

/** `i…-0001` → `i…`; anything else as it is. */
function sandboxOf(machineId: string): string {
  return /^(i[a-z0-9]{19})-[0-9a-f]{4}$/.exec(machineId)?.[1] ?? machineId;
}

function sandboxesIn(dir: string): string[] {
  return readdirSync(dir).map(sandboxOf).sort();
}

function cgroups(index: number): string[] {
  const names = new Set<string>();
  const roots = ["/sys/fs/cgroup", ...readdirSync("/sys/fs/cgroup").map((name) => join("/sys/fs/cgroup", name))];
  for (const root of roots) {
    const parent = join(root, "aenv", String(index));
    if (!statSync(parent, { throwIfNoEntry: false })?.isDirectory()) continue;
    for (const entry of readdirSync(parent, { withFileTypes: true })) if (entry.isDirectory()) names.add(entry.name);
  }
  return [...names].map(sandboxOf).sort();
}

function slotsOf(index: number): number {
  const network = serverNetwork(index);
  const links = readFileSync("/proc/net/dev", "utf8")
    .split("\n")
    .map((line) => line.slice(0, line.indexOf(":")).trim());
  const slots = [...readdirSync("/run/netns"), ...links].map((name) => slotOfName(network, name));
  return new Set(slots.filter((slot) => slot !== undefined)).size;
}

function sandboxRecords({ dataDir }: TestServer): string[] {
  const catalog = new DatabaseSync(dataPaths(dataDir).catalog, { readOnly: true });
  try {
    const rows = catalog.prepare("SELECT key FROM records WHERE kind = 'sandbox'").all();
    return rows.map((row) => String(row.key)).sort();
  } finally {
    catalog.close();
  }
}

async function leases({ dataDir }: TestServer): Promise<string[]> {
  const store = connectStore(dataPaths(dataDir).blobdSocket);
  try {
    const prefix = "sandbox:";
    const all = await store.leases();
    return all.flatMap((lease) => (lease.startsWith(prefix) ? [lease.slice(prefix.length)] : [])).sort();
  } finally {
    store.close();
  }
}
