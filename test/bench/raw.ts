import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newToken, type Snapshot } from "#domain";
import { AGENT_PORT, Guest } from "#guest";
import { silentLogger } from "#lib/log";
import type { CommandResult, CommandRunner, RunOptions } from "#lib/run";
import { localRunner } from "#lib/spawn";
import { claimServer, createSlots, removeServerNetwork, type ServerClaim, type Slot, type SlotPool } from "#network";
import { NodePaths } from "#orchestrator";
import { connectStore, type MountedImage, type Store } from "#store";
import { dataPaths } from "../../src/config.ts";
import { openCgroups } from "../../src/driver/cgroup/index.ts";
import { Bundle } from "../../src/driver/gvisor/bundle.ts";
import { type MachineParts, removeMachine, unmountWholly } from "../../src/driver/gvisor/leftovers.ts";
import { Runsc } from "../../src/driver/gvisor/runsc.ts";
import { stateDir } from "../../src/orchestrator/checkpoints.ts";
import { fromSetUp, type TestServer } from "../e2e/start.ts";
import { slotTools } from "../host/machines/host.ts";
import { type Step, Stopwatch } from "./stopwatch.ts";

const LEASE = "bench";
const INIT_TIMEOUT_MS = 15_000;

interface RawParts {
  readonly dir: string;
  readonly claim: ServerClaim;
  readonly store: Store;
  readonly machine: MachineParts;
  readonly driver: Recorder;
  readonly snapshot: Snapshot;
  readonly image: MountedImage;
  readonly paths: NodePaths;
}

/**
 * What the product is compared to: its image, agent, snapshot, limits and flags, in a slot of the same kind, but by bare
 * commands of gVisor's own program. Whatever can be there beforehand is made beforehand, and not counted.
 */
export class RawHost {
  readonly stopwatch = new Stopwatch();
  readonly #parts: RawParts;
  readonly #slots: SlotPool;
  readonly #sandboxes = new Set<RawSandbox>();
  #made = 0;

  private constructor(parts: RawParts) {
    this.#parts = parts;
    this.#slots = createSlots({ ...slotTools(), server: parts.claim.network, log: silentLogger, ready: 1 });
  }

  static async open(server: TestServer, snapshot: Snapshot): Promise<RawHost> {
    const dir = mkdtempSync(join(tmpdir(), "aenv-raw-"));
    const claim = await claimServer({ dataDir: dir, onStale: (stale) => removeServerNetwork(slotTools(), stale) });
    const root = join("/run/aenv", String(claim.index), "r");
    for (const path of [root, join(dir, "machines"), join(dir, "uppers")]) mkdirSync(path, { recursive: true });
    const store = connectStore(dataPaths(server.dataDir).blobdSocket);
    const driver = new Recorder();
    const host = new RawHost({
      dir,
      claim,
      store,
      driver,
      snapshot,
      machine: {
        runsc: await Runsc.open(fromSetUp("AENV_BENCH_RUNSC"), root, driver),
        cgroups: openCgroups(`/aenv/${claim.index}`),
        machinesDir: join(dir, "machines"),
      },
      image: await store.mount(snapshot.imageDigest, LEASE),
      paths: new NodePaths(server.dataDir),
    });
    await host.#slots.recover([]);
    return host;
  }

  /** All a sandbox needs but the sandbox. `imagePath`: the state it will be restored from, if not the template's. */
  async prepare(imagePath = this.#templateState): Promise<RawSandbox> {
    const { machine, snapshot, image, dir, driver, paths } = this.#parts;
    const slot = await this.#slots.acquire({ internet: true });
    this.#made += 1;
    const spec = {
      id: `iraw00000000000000000-${this.#made.toString(16).padStart(4, "0")}`,
      resources: snapshot.resources,
      hostname: "raw",
      image,
      agentDir: paths.agent(snapshot.agentDigest),
      network: slot,
    };
    const bundle = new Bundle(machine.machinesDir, spec.id);
    bundle.make();
    await machine.cgroups.create(spec.id, spec.resources);
    const upper = bundle.fill(spec, join(dir, "uppers"), machine.cgroups.path(spec.id), machine.runsc.version);
    await machine.runsc.restore(spec.id, bundle, upper, spec.resources.diskBytes, imagePath);
    const sandbox = new RawSandbox(this.#parts, slot, spec.id, bundle, driver.last);
    this.#sandboxes.add(sandbox);
    return sandbox;
  }

  get #templateState(): string {
    const { paths, snapshot } = this.#parts;
    return stateDir(paths.snapshot(snapshot.id));
  }

  /** Ends a sandbox, in whatever state, and removes all of it. Repeatable. */
  async remove(sandbox: RawSandbox): Promise<void> {
    await sandbox.remove();
    await this.#slots.release(sandbox.slot);
    this.#sandboxes.delete(sandbox);
  }

  /** Waits until the slots are as they were. */
  settled(): Promise<void> {
    return this.#slots.settled();
  }

  async close(): Promise<void> {
    const { store, claim, machine, dir } = this.#parts;
    await this.stopwatch.close();
    for (const sandbox of this.#sandboxes) await this.remove(sandbox);
    await this.#slots.close({ remove: true });
    await machine.cgroups.removeParent();
    await store.release(LEASE);
    store.close();
    const stateRoot = join("/run/aenv", String(claim.index));
    await unmountWholly(localRunner(), join(machine.runsc.root, "null-netns"));
    rmSync(stateRoot, { recursive: true, force: true });
    rmSync(dir, { recursive: true, force: true });
    await claim.release();
  }
}

/** One sandbox by hand: start steps, perhaps checkpoint steps, then it goes back to its host to be removed. */
export class RawSandbox {
  readonly slot: Slot;
  /** Where `checkpointSteps` write to. */
  readonly checkpointDir: string;
  readonly #parts: RawParts;
  readonly #id: string;
  readonly #bundle: Bundle;
  /** The driver's own command for a restore, which makes the sandbox as well. */
  readonly #restoring: readonly string[];

  constructor(parts: RawParts, slot: Slot, id: string, bundle: Bundle, restoring: readonly string[]) {
    this.#parts = parts;
    this.#id = id;
    this.#bundle = bundle;
    this.#restoring = restoring;
    this.slot = slot;
    this.checkpointDir = join(parts.dir, `checkpoint-${id}`);
  }

  /** create, restore, first answer of the agent. */
  get startSteps(): Step[] {
    const at = this.#restoring.indexOf("restore");
    const flags = this.#restoring.slice(0, at);
    const own = (start: string): string[] => this.#restoring.slice(at + 1).filter((word) => word.startsWith(start));
    const make = [...flags, "create", ...own("--bundle="), ...own("--pid-file="), this.#id];
    const restore = [...flags, "restore", "--detach", ...own("--image-path="), this.#id];
    const log = this.#bundle.logFile;
    return [{ run: make, log }, { run: restore, log }, this.#answer];
  }

  /** The same by one command, as the driver does it. */
  get startInOneSteps(): Step[] {
    return [{ run: this.#restoring, log: this.#bundle.logFile }, this.#answer];
  }

  /** Ends the sandbox with its state in `checkpointDir`, on stable storage. */
  checkpointSteps(): Step[] {
    const run = this.#checkpoint(this.checkpointDir);
    return [{ run, log: this.#bundle.logFile }, { fsync: this.checkpointDir }];
  }

  /** Writes the state of the sandbox, which goes on, into a new folder that is the caller's. */
  captureStep(dir: string): Step {
    return { run: this.#checkpoint(dir, "--leave-running"), log: this.#bundle.logFile };
  }

  #checkpoint(dir: string, ...more: string[]): readonly string[] {
    mkdirSync(dir, { mode: 0o700 });
    const { path, root } = this.#parts.machine.runsc;
    // As the product has it: pages of zeros are left out.
    const what = ["checkpoint", "--exclude-committed-zero-pages", `--image-path=${dir}`];
    return [path, `--root=${root}`, ...what, ...more, this.#id];
  }

  /** Tells the agent, which has been captured so that it answers nobody, whom to answer: those who send the headers returned. */
  async admit(): Promise<Record<string, string>> {
    const { snapshot } = this.#parts;
    const [accessToken, initKey] = [newToken(), newToken()];
    const guest = new Guest(this.slot.hostAddress, INIT_TIMEOUT_MS);
    const known = { sandboxId: this.#id, templateId: snapshot.id, generation: 1, hostname: "raw" };
    try {
      await guest.init({ ...known, env: {}, defaultUser: "user", accessToken, initKey }, snapshot.initKey);
    } finally {
      guest.close();
    }
    return { "x-access-token": accessToken };
  }

  async remove(): Promise<void> {
    await removeMachine(this.#parts.machine, this.#id, "anywhere");
    rmSync(this.checkpointDir, { recursive: true, force: true });
  }

  get #answer(): Step {
    return { answer: [this.slot.hostAddress, AGENT_PORT, "/health"] };
  }
}

/** Tells what the driver would run, without running it. */
class Recorder implements CommandRunner {
  last: readonly string[] = [];

  run(argv: readonly string[], options: RunOptions = {}): Promise<CommandResult> {
    if (argv.includes("--version")) return localRunner().run(argv, options);
    this.last = argv;
    const nothing = new Uint8Array();
    return Promise.resolve({ exitCode: 0, signal: 0, stdout: nothing, stderr: nothing, timedOut: false });
  }
}
