import { chmodSync, copyFileSync, linkSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import type { Resources } from "#domain";
import { commandLine, processIds } from "#lib/proc";
import { FirecrackerApi } from "../../../src/driver/firecracker/api.ts";
import type { FirecrackerBench } from "./bench.ts";

const WRITTEN = ["state.new", "memory.new"];

/**
 * What the driver is compared to: a VM of the same checkpoint in a slot of the same kind, by bare calls of Firecracker's API.
 * What can be there beforehand is: the process, in a jail that the driver has made, and the files.
 */
export class RawMachine {
  readonly agentAddress: string;
  readonly #root: string;
  readonly #api: FirecrackerApi;
  readonly #stop: () => Promise<void>;

  private constructor(agentAddress: string, root: string, api: FirecrackerApi, stop: () => Promise<void>) {
    this.agentAddress = agentAddress;
    this.#root = root;
    this.#api = api;
    this.#stop = stop;
  }

  static async prepare(bench: FirecrackerBench, checkpoint: string, resources: Resources): Promise<RawMachine> {
    const spec = await bench.spec(resources);
    await bench.driver.prepare(spec.network);
    const root = bench.jailRoot(jailIn(spec.network.netnsPath));
    linkSync(spec.image.file, join(root, "image"));
    for (const name of readdirSync(checkpoint)) {
      const to = name.startsWith("memory") ? "memory" : name;
      if (name === "upper") copyFileSync(join(checkpoint, name), join(root, to));
      else linkSync(join(checkpoint, name), join(root, to));
    }
    emptyFiles(root);
    for (const name of ["upper", ...WRITTEN]) chmodSync(join(root, name), 0o666);
    const api = new FirecrackerApi(join(root, "api.sock"));
    const stop = async (): Promise<void> => {
      api.close();
      await bench.driver.unprepare(spec.network);
    };
    return new RawMachine(bench.agentAddress(spec) ?? "", root, api, stop);
  }

  static async restore(bench: FirecrackerBench, checkpoint: string, resources: Resources): Promise<RawMachine> {
    const machine = await RawMachine.prepare(bench, checkpoint, resources);
    await machine.load();
    return machine;
  }

  emptyFiles(): void {
    emptyFiles(this.#root);
  }

  async load(): Promise<void> {
    await this.#api.loadSnapshot({ statePath: "/state", memoryPath: "/memory" }, { trackDirtyPages: true });
  }

  /** Into empty files, which `emptyFiles` makes. */
  async pauseAndSnapshot(): Promise<void> {
    await this.#api.pause();
    await this.#api.createSnapshot("Diff", { statePath: "/state.new", memoryPath: "/memory.new" });
    for (const name of WRITTEN) {
      const file = await open(join(this.#root, name), "r");
      await file.sync();
      await file.close();
    }
  }

  async pause(): Promise<void> {
    await this.#api.pause();
  }

  async resume(): Promise<void> {
    await this.#api.resume();
  }

  stop(): Promise<void> {
    return this.#stop();
  }
}

function emptyFiles(root: string): void {
  for (const name of WRITTEN) writeFileSync(join(root, name), "");
}

/** The jail whose process is in this network namespace. */
function jailIn(netnsPath: string): string {
  const { ino } = statSync(netnsPath);
  for (const pid of processIds()) {
    try {
      if (statSync(`/proc/${pid}/ns/net`).ino !== ino) continue;
      const args = commandLine(pid);
      const id = args[args.indexOf("--id") + 1];
      if (args.includes("--id") && id !== undefined) return id;
    } catch {
      // It has just ended.
    }
  }
  throw new Error(`no jailed process is in ${netnsPath}`);
}
