import { copyFileSync, existsSync, mkdirSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Driver, MachineId, MachineNetwork, MachineSpec } from "#driver";
import { silentLogger } from "#lib/log";
import { localRunner, localWatcher } from "#lib/spawn";
import {
  claimServer,
  createSlots,
  removeServerNetwork,
  type ServerClaim,
  type Slot,
  type SlotCompanion,
  type SlotPool,
  type SlotTools,
} from "#network";

const AGENT_PORT = 49983;
const isV1 = existsSync("/sys/fs/cgroup/memory");

/** A server's worth of host for machines under test: a folder, an index, slots, cgroups, an agent. */
export class MachineHost implements AsyncDisposable {
  readonly #tools = slotTools();
  readonly runner = this.#tools.runner;
  readonly watcher = localWatcher();
  readonly dir: string;
  readonly cgroupParent: string;
  readonly stateDir: string;
  readonly claim: ServerClaim;
  readonly #slots: SlotPool;
  readonly #held = new Map<MachineId, Slot>();
  /** Of machines that have ended. */
  readonly #spare: Slot[] = [];

  private constructor(dir: string, claim: ServerClaim, companion: SlotCompanion) {
    this.dir = dir;
    this.claim = claim;
    this.cgroupParent = `/aenv/${claim.index}`;
    this.stateDir = `/run/aenv/${claim.index}`;
    this.#slots = createSlots({ ...this.#tools, server: claim.network, log: silentLogger, ready: 1, companion });
  }

  /** `companion`: of the slots, as the driver under test would be; it may be given later. */
  static async open(kind: string, companion: SlotCompanion): Promise<MachineHost> {
    const dir = await mkdtemp(join(tmpdir(), `aenv-${kind}-`));
    const claim = await claimServer({ dataDir: dir, onStale: (network) => removeServerNetwork(slotTools(), network) });
    const host = new MachineHost(dir, claim, companion);
    mkdirSync(host.agentDir);
    copyFileSync(join(fromEnvironment("AENV_TEST_BIN_DIR"), "envd"), join(host.agentDir, "envd"));
    return host;
  }

  /** Makes the first slots. */
  async start(): Promise<void> {
    await this.#slots.recover([]);
  }

  get agentDir(): string {
    return join(this.dir, "agent");
  }

  async network(id: MachineId): Promise<MachineNetwork> {
    const slot = this.#spare.pop() ?? (await this.#slots.acquire({ internet: false }));
    this.#held.set(id, slot);
    return slot;
  }

  /** Lets another machine have the network of one that has ended and has left it as it was. */
  reuse(id: MachineId): void {
    const slot = this.#held.get(id);
    if (slot === undefined) return;
    this.#held.delete(id);
    this.#spare.push(slot);
  }

  agentAddress({ id }: MachineSpec): string {
    const slot = this.#held.get(id);
    if (slot === undefined) throw new Error(`${id} is no machine of this test`);
    return `${slot.hostAddress}:${AGENT_PORT}`;
  }

  /** The machine's groups, in all hierarchies that limit something. */
  cgroupDirs(id: MachineId): string[] {
    const roots = isV1 ? ["memory", "cpu", "pids"].map((name) => `/sys/fs/cgroup/${name}`) : ["/sys/fs/cgroup"];
    return roots.map((root) => `${root}${this.cgroupParent}/${id}`);
  }

  /** Removes what there is of machines, then the slots and the folder. */
  async close(driver?: Driver): Promise<void> {
    for (const id of (await driver?.leftovers()) ?? []) await driver?.destroy(id);
    this.watcher.close();
    for (const slot of [...this.#held.values(), ...this.#spare]) await this.#slots.release(slot);
    await this.#slots.close({ remove: true });
    await this.claim.release();
    await rm(this.dir, { recursive: true });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Set by `npm test`. */
export function fromEnvironment(name: string): string {
  const value = process.env[name];
  if (value === undefined || value === "") throw new Error(`${name} is not set: run it by \`npm test -- host\``);
  return value;
}

/** What slots are made with where no server runs. */
export function slotTools(): SlotTools {
  return { runner: localRunner(), netslotPath: join(fromEnvironment("AENV_TEST_BIN_DIR"), "netslot") };
}
