import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { GIB, MIB, type Resources } from "#domain";
import type { Driver, Machine, MachineId, MachineNetwork, MachineSpec } from "../driver.ts";
import { IS_EMULATED, TestAgent } from "./agent.ts";

/** What a driver under test stands on. One for the whole suite. */
export interface DriverHarness extends AsyncDisposable {
  /** A driver object on the same host and state: the first, or that of a restarted server. */
  open(): Promise<Driver>;
  /** A specification with an id and a network of its own. */
  spec(resources: Resources): Promise<MachineSpec>;
  /** `host:port` of the machine's agent; undefined where the driver's machines have none. */
  agentAddress(spec: MachineSpec): string | undefined;
  /** The machine has ended: its network may be the next one's, where making another takes long. */
  reuse?(spec: MachineSpec): void;
}

/** What a machine has where a test asks for nothing. Where the processor is emulated, so little that bombs end soon: under gVisor
 *  32 processes of the guest. */
export const SMALL: Resources = {
  ...{ vcpus: 1, diskBytes: 1 * GIB },
  memoryBytes: (IS_EMULATED ? 192 : 256) * MIB,
  pidsMax: IS_EMULATED ? 352 : 2048,
};

/** A machine of a test. */
export interface Started {
  readonly machine: Machine;
  readonly spec: MachineSpec;
  readonly agent: TestAgent | undefined;
  agentOrFail(): TestAgent;
}

/** A driver and the machines a test has started with it. */
export class Bench implements AsyncDisposable {
  readonly harness: DriverHarness;
  readonly dir: string;
  #driver: Driver;
  #checkpoints = 0;
  #template: Promise<string> | undefined;
  readonly #agents: TestAgent[] = [];

  private constructor(harness: DriverHarness, driver: Driver, dir: string) {
    this.harness = harness;
    this.#driver = driver;
    this.dir = dir;
  }

  static async open(harness: DriverHarness): Promise<Bench> {
    const driver = await harness.open();
    // This host's index may have been that of a server whose folder has gone before its machines had.
    for (const id of await driver.leftovers()) await driver.destroy(id);
    return new Bench(harness, driver, await mkdtemp(join(tmpdir(), "aenv-driver-")));
  }

  get driver(): Driver {
    return this.#driver;
  }

  async reopen(): Promise<void> {
    await this.#driver.close();
    this.#driver = await this.harness.open();
  }

  checkpointDir(): string {
    this.#checkpoints += 1;
    return join(this.dir, `checkpoint-${this.#checkpoints}`);
  }

  async boot(resources: Resources = SMALL): Promise<Started> {
    const spec = await this.harness.spec(resources);
    return this.#started(spec, await this.#driver.boot(spec));
  }

  async restore(dir: string, resources: Resources = SMALL): Promise<Started> {
    const spec = await this.harness.spec(resources);
    return this.#started(spec, await this.#driver.restore(spec, dir));
  }

  /** A machine booted with the disk of a checkpoint of that alone. */
  async bootFrom(dir: string, resources: Resources = SMALL): Promise<Started> {
    const spec = await this.harness.spec(resources);
    return this.#started(spec, await this.#driver.boot(spec, { diskFrom: dir }));
  }

  /** What a checkpoint of the disk needs of the guest. A machine that goes on thaws its disk by itself. */
  async freezeDisk({ agent }: Started): Promise<void> {
    if (this.#driver.capabilities.diskCapture === "flushed") await agent?.freezeDisk();
  }

  async checkpointDisk(
    started: Started,
    dir: string,
    { keepRunning }: { readonly keepRunning: boolean },
  ): Promise<void> {
    await this.freezeDisk(started);
    await started.machine.checkpoint(dir, { keepRunning, capture: "disk" });
    if (keepRunning && this.#driver.capabilities.diskCapture === "flushed") await started.agent?.thawDisk();
  }

  /** A machine as sandboxes are: restored from the checkpoint of one that was booted once. */
  async start(): Promise<Started> {
    return this.restore(await this.template());
  }

  /** The checkpoint that machines start from. */
  template(): Promise<string> {
    this.#template ??= this.#makeTemplate();
    return this.#template;
  }

  /** Lets machines start from this one, which goes on; a boot less, where booting takes long. */
  async useAsTemplate(machine: Machine): Promise<void> {
    const dir = this.checkpointDir();
    await machine.checkpoint(dir, { keepRunning: true });
    this.#template = Promise.resolve(dir);
  }

  async #makeTemplate(): Promise<string> {
    const { machine } = await this.boot();
    await this.useAsTemplate(machine);
    await machine.stop();
    return this.template();
  }

  async adopt(spec: MachineSpec): Promise<Machine> {
    const machine = await this.#driver.adopt(spec);
    assert.ok(machine !== undefined, `machine ${spec.id} was not found again`);
    assert.equal(machine.id, spec.id);
    return machine;
  }

  async #started(spec: MachineSpec, machine: Machine): Promise<Started> {
    const address = this.harness.agentAddress(spec);
    const agent = address === undefined ? undefined : new TestAgent(address);
    if (agent !== undefined) this.#agents.push(agent);
    void machine.exited.then(() => this.harness.reuse?.(spec));
    await agent?.ready();
    const agentOrFail = (): TestAgent => {
      assert.ok(agent !== undefined, "this driver's machines have no agent: the test has to be skipped for it");
      return agent;
    };
    return { machine, spec, agent, agentOrFail };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const agent of this.#agents) agent.close();
    for (const id of await this.#driver.leftovers()) await this.#driver.destroy(id);
    await this.#driver.close();
    await rm(this.dir, { recursive: true, force: true });
    await this.harness[Symbol.asyncDispose]();
  }
}

/** A slot's network as machines see it. */
export function testNetwork(names: Pick<MachineNetwork, "netnsPath" | "device">): MachineNetwork {
  return {
    ...names,
    macAddress: "02:ae:00:00:00:01",
    address: "169.254.0.21/30",
    gateway: "169.254.0.22",
    gatewayMacAddress: "02:ae:00:00:00:02",
    mtuBytes: 1500,
  };
}

let serial = 0;

/** An id of the form machines have: a sandbox's and a generation. */
export function testMachineId(): MachineId {
  serial += 1;
  const random = Math.random().toString(36).slice(2, 10).padEnd(8, "0");
  return `i${`${random}${serial}`.padEnd(19, "x")}-0001`;
}
