import { type Catalog, type CatalogRecord, recordKind } from "#catalog";
import type { BootCommands, MachineCapture, Sandbox, SandboxId } from "#domain";

/** Everything a node must know of a sandbox to go on with it after a crash of ours. */
export interface SandboxRecord {
  readonly sandbox: Sandbox;
  /** The running (or last) incarnation's machine. */
  readonly machineId: string;
  /** Slot of the running incarnation. */
  readonly slotIndex?: number;
  readonly imageDigest: string;
  readonly agentDigest: string;
  /** What the agent's next `/init` asks for. */
  readonly initKey: string;
  /** What it runs when it is booted anew; absent: nothing. */
  readonly boot?: BootCommands;
  /** While paused, and until a resume has been recorded: the name of the checkpoint folder that holds the state. */
  readonly checkpointOf?: string;
  /** What that checkpoint holds. Absent: memory. */
  readonly capture?: MachineCapture;
}

/** Once what it was resumed from is of no use any more. */
export function withoutCheckpoint({ checkpointOf: _, capture: __, ...record }: SandboxRecord): SandboxRecord {
  return record;
}

const SANDBOX = recordKind<SandboxRecord>("sandbox", ["sandbox", "machineId", "imageDigest", "agentDigest", "initKey"]);

/** The node's sandboxes on disk. One writer for each: whoever carries out the sandbox's current operation. */
export class Journal {
  readonly #catalog: Catalog;

  constructor(catalog: Catalog) {
    this.#catalog = catalog;
  }

  /** With `durable`, on stable storage before it returns; else safe from a crash of ours only. */
  async save(record: SandboxRecord, options: { readonly durable?: boolean } = {}): Promise<void> {
    await this.#catalog.put(SANDBOX, record.sandbox.id, record, options);
  }

  async remove(id: SandboxId, options: { readonly durable?: boolean } = {}): Promise<void> {
    await this.#catalog.delete(SANDBOX, id, options);
  }

  async load(): Promise<SandboxRecord[]> {
    return (await this.#catalog.list(SANDBOX)).map((entry: CatalogRecord<SandboxRecord>) => entry.value);
  }
}

/** Name of the checkpoint folder that a pause of the running incarnation makes. By the generation: a machine that is thawed after a
 *  pause goes on under its old id, while its old checkpoint may still be going. */
export function checkpointIdOf({ sandbox }: Pick<SandboxRecord, "sandbox">): string {
  return machineIdOf(sandbox.id, sandbox.generation);
}

/** A machine's id: sandbox id and generation, of one fixed length (gVisor's tools resolve ids by prefix). */
export function machineIdOf(id: SandboxId, generation: number): string {
  return `${id}-${generation.toString(16).padStart(4, "0")}`;
}
