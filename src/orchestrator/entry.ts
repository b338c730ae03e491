import type { Sandbox, SandboxId, SandboxState } from "#domain";
import type { Machine } from "#driver";
import type { Guest } from "#guest";
import type { Slot } from "#network";
import type { SandboxRecord } from "./record.ts";

/** The parts of a running incarnation. */
export interface Incarnation {
  readonly machine: Machine;
  readonly slot: Slot;
  readonly guest: Guest;
}

/** One sandbox in memory: its record, its incarnation while it has one, and the operation under way. */
export class Entry {
  record: SandboxRecord;
  incarnation: Incarnation | undefined;
  /** Settles, never rejects, when the operation under way is over. */
  operation: Promise<void> | undefined;
  /** The incarnation that stands still, because it was idle: its agent does not answer. */
  frozen: Incarnation | undefined;
  /** The outcome of the operation under way, for those who join it. */
  outcome: Promise<unknown> | undefined;
  /** Somebody wants it gone: nothing else starts any more. */
  doomed = false;
  /** Settles when it is gone, for all who want that. */
  ending: Promise<void> | undefined;
  /** After a crash its kill is finished, not undone. */
  isEndRecorded = false;
  /** True once nothing of it runs any more, nor ever will: for everybody outside it is gone, though it is still being removed. */
  isDead = false;
  /** The end of earlier incarnations' machines, which goes on after a pause was answered. Never rejects. */
  leaving: Promise<void> | undefined;
  /** Of the end of its running incarnation's machine, or of the last one's. */
  watching: Disposable | undefined;
  /** After a failed attempt to end it at its timeout: not before then again. */
  retryExpiryAtMs = 0;

  readonly #dead = Promise.withResolvers<void>();

  constructor(record: SandboxRecord) {
    this.record = record;
  }

  /** Settles when `isDead`. */
  get death(): Promise<void> {
    return this.#dead.promise;
  }

  die(): void {
    this.isDead = true;
    this.#dead.resolve();
  }

  get id(): SandboxId {
    return this.record.sandbox.id;
  }

  get sandbox(): Sandbox {
    return this.record.sandbox;
  }

  /** What lifecycle decisions see. */
  get state(): SandboxState {
    return this.doomed ? "killing" : this.record.sandbox.state;
  }

  update(change: Partial<Sandbox>, rest: Partial<Omit<SandboxRecord, "sandbox">> = {}): SandboxRecord {
    this.record = { ...this.record, ...rest, sandbox: { ...this.record.sandbox, ...change } };
    return this.record;
  }
}
