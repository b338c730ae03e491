import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { Driver, DriverCapabilities, Machine, MachineId, MachineSpec } from "../driver.ts";
import { type FakeAgent, FakeHost } from "./host.ts";
import { CHECKPOINT_FILE, DISK_FILE, FAKE_VERSION, FakeMachine } from "./machine.ts";

export interface FakeOptions {
  /** Shared by drivers that stand for one server before and after its restart. */
  readonly host?: FakeHost;
  /** Absent: machines are records, and nobody answers. */
  readonly agent?: FakeAgent;
}

/** A driver for tests and for trying the API where no runtime is: no isolation, no limits; a restored machine is a new one. */
export function createFakeDriver(options: FakeOptions = {}): Driver {
  return new FakeDriver(options.host ?? new FakeHost(), options.agent);
}

class FakeDriver implements Driver {
  readonly name = "fake";
  readonly version = FAKE_VERSION;
  readonly capabilities: DriverCapabilities = {
    monotonicJumps: false,
    clonesShareUserRandomness: true,
    incrementalMemory: false,
    limitsKeptBy: "host",
    diskCapture: "complete",
    imageInit: false,
  };
  readonly #host: FakeHost;
  readonly #agent: FakeAgent | undefined;

  constructor(host: FakeHost, agent: FakeAgent | undefined) {
    this.#host = host;
    this.#agent = agent;
  }

  async prepare(): Promise<void> {}

  async unprepare(): Promise<void> {}

  async boot(spec: MachineSpec, { diskFrom }: { readonly diskFrom?: string } = {}): Promise<Machine> {
    this.#host.mayFail("boot");
    if (diskFrom !== undefined) await readFile(join(diskFrom, DISK_FILE));
    return this.#start(spec);
  }

  async restore(spec: MachineSpec, checkpointDir: string): Promise<Machine> {
    this.#host.mayFail("restore");
    // As a real driver: what is no checkpoint cannot be restored.
    await readFile(join(checkpointDir, CHECKPOINT_FILE));
    return this.#start(spec);
  }

  async adopt(spec: MachineSpec): Promise<Machine | undefined> {
    this.#host.mayFail("adopt");
    return this.#host.running.get(spec.id);
  }

  async leftovers(): Promise<MachineId[]> {
    return [...this.#host.remains];
  }

  async destroy(id: MachineId): Promise<void> {
    this.#host.mayFail("destroy");
    await this.#host.running.get(id)?.stop();
    this.#host.remains.delete(id);
  }

  async close(): Promise<void> {}

  async #start(spec: MachineSpec): Promise<Machine> {
    if (this.#host.remains.has(spec.id)) throw new Error(`machine id ${spec.id} has been used`);
    const machine = await FakeMachine.start(this.#host, spec, this.#agent);
    this.#host.running.set(spec.id, machine);
    this.#host.remains.add(spec.id);
    return machine;
  }
}
