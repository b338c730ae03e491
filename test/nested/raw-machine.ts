import { chmodSync, copyFileSync, linkSync, readdirSync, readFileSync, statSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import type { Resources } from "#domain";
import { FirecrackerApi } from "../../src/driver/firecracker/api.ts";
import type { FirecrackerBench } from "../host/firecracker/bench.ts";

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
    chmodSync(join(root, "upper"), 0o666);
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

  async load(): Promise<void> {
    await this.#api.loadSnapshot({ statePath: "/state", memoryPath: "/memory" }, { trackDirtyPages: true });
  }

  async pauseAndSnapshot(): Promise<void> {
    await this.#api.pause();
    await this.#api.createSnapshot("Diff", { statePath: "/run/state", memoryPath: "/run/memory" });
    for (const name of ["state", "memory"]) {
      const file = await open(join(this.#root, "run", name), "r");
      await file.sync();
      await file.close();
    }
  }

  async resume(): Promise<void> {
    await this.#api.resume();
  }

  stop(): Promise<void> {
    return this.#stop();
  }
}

/** The jail whose process is in this network namespace. */
function jailIn(netnsPath: string): string {
  const { ino } = statSync(netnsPath);
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      if (statSync(`/proc/${pid}/ns/net`).ino !== ino) continue;
      const args = readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
      const id = args[args.indexOf("--id") + 1];
      if (args.includes("--id") && id !== undefined) return id;
    } catch {
      // It has just ended.
    }
  }
  throw new Error(`no jailed process is in ${netnsPath}`);
}
