import { readdir } from "node:fs/promises";
import {
  newSandboxId,
  newTemplateId,
  newToken,
  ownInit,
  type Snapshot,
  type SnapshotRequest,
  type StartEvent,
} from "#domain";
import { GuestShell } from "#guest";
import {
  CHECKPOINT_FORMAT,
  capture,
  removeCheckpoint,
  requireRestorable,
  stateDir,
  totalBytes,
} from "./checkpoints.ts";
import { type Context, snapshotLease } from "./context.ts";
import type { Incarnation } from "./entry.ts";
import { type LaunchPlan, launch } from "./launch.ts";
import { machineIdOf } from "./record.ts";
import type { StateSource } from "./run.ts";
import { runStartCommands } from "./start-commands.ts";

/** Snapshots that sandboxes start from: made once per template build, kept until nobody starts from them. */
export class Snapshots {
  readonly #context: Context;
  /** Starts under way by snapshot, and what to do when the last is over. */
  readonly #users = new Map<string, { count: number; onIdle: (() => void)[] }>();

  constructor(context: Context) {
    this.#context = context;
  }

  /** Runs `work` while the snapshot's files are sure to stay. */
  async using<T>(snapshotId: string, work: () => Promise<T>): Promise<T> {
    const use = this.#users.get(snapshotId) ?? { count: 0, onIdle: [] };
    this.#users.set(snapshotId, use);
    use.count += 1;
    try {
      return await work();
    } finally {
      use.count -= 1;
      if (use.count === 0) {
        this.#users.delete(snapshotId);
        for (const resolve of use.onIdle) resolve();
      }
    }
  }

  source(snapshot: Snapshot): StateSource {
    requireRestorable(this.#context.driver, snapshot);
    return { dir: stateDir(this.#context.paths.snapshot(snapshot.id)), initKey: snapshot.initKey };
  }

  async make(request: SnapshotRequest, onStart: (event: StartEvent) => void, signal: AbortSignal): Promise<Snapshot> {
    const { driver, store, paths, agentDigest, envdVersion } = this.#context;
    const id = newTemplateId();
    const dir = paths.snapshot(id);
    const initKey = newToken();
    let incarnation: Incarnation | undefined;
    try {
      incarnation = await launch(this.#context, this.#plan(id, initKey, request), {});
      signal.throwIfAborted();
      await bringUp(incarnation, request, onStart, signal);
      const digests = { imageDigest: request.image.digest, agentDigest };
      const manifest = await capture(driver, incarnation.machine, dir, digests);
      await store.sync([dir, paths.agent(agentDigest)]);
      await this.#end(incarnation);
      return {
        id,
        driver: driver.name,
        driverVersion: incarnation.machine.version,
        arch: process.arch,
        formatVersion: CHECKPOINT_FORMAT,
        imageDigest: request.image.digest,
        agentDigest,
        envdVersion,
        initKey,
        resources: request.resources,
        env: request.env,
        defaultUser: request.defaultUser,
        ...(request.defaultWorkdir !== undefined && { defaultWorkdir: request.defaultWorkdir }),
        sizeBytes: totalBytes(manifest),
        createdAtMs: manifest.createdAtMs,
      };
    } catch (error) {
      // The image is let go only when nothing runs on it any more.
      if (incarnation !== undefined) await this.#end(incarnation);
      await this.remove(id);
      throw error;
    }
  }

  async remove(snapshotId: string): Promise<void> {
    const use = this.#users.get(snapshotId);
    if (use !== undefined) await new Promise<void>((resolve) => use.onIdle.push(resolve));
    await removeCheckpoint(this.#context.paths.snapshot(snapshotId));
    await this.#context.store.release(snapshotLease(snapshotId));
  }

  /** Removes every snapshot that is not among the known ones: left by a crash between capture and record. */
  async retain(known: readonly Snapshot[]): Promise<void> {
    const ids = new Set(known.map((snapshot) => snapshot.id));
    const prefix = snapshotLease("");
    const leased = (await this.#context.store.leases()).filter((lease) => lease.startsWith(prefix));
    const found = [
      ...(await readdir(this.#context.paths.snapshots)),
      ...leased.map((lease) => lease.slice(prefix.length)),
    ];
    for (const id of new Set(found)) if (!ids.has(id)) await this.remove(id);
  }

  #plan(id: string, initKey: string, request: SnapshotRequest): LaunchPlan {
    const sandboxId = newSandboxId();
    const imageInit = this.#context.driver.capabilities.imageInit ? ownInit(request.image.config) : undefined;
    return {
      machineId: machineIdOf(sandboxId, 1),
      imageDigest: request.image.digest,
      ...(imageInit !== undefined && { imageInit }),
      agentDigest: this.#context.agentDigest,
      leaseId: snapshotLease(id),
      resources: request.resources,
      // What is started may fetch things, as it may in the sandboxes of the template.
      network: { internet: request.commands.startCmd !== undefined },
      identity: {
        sandboxId,
        templateId: "",
        hostname: "template",
        env: request.env,
        defaultUser: request.defaultUser,
        ...(request.defaultWorkdir !== undefined && { defaultWorkdir: request.defaultWorkdir }),
        initKey,
      },
      onSlot: () => {},
    };
  }

  async #end({ guest, machine, slot }: Incarnation): Promise<void> {
    guest.close();
    await machine.stop();
    await this.#context.slots.release(slot);
  }
}

/** Returns when what the request starts is ready, with no connection of ours left in the machine. */
async function bringUp(
  { machine, slot }: Incarnation,
  { commands }: SnapshotRequest,
  onEvent: (event: StartEvent) => void,
  signal: AbortSignal,
): Promise<void> {
  const shell = new GuestShell(slot.hostAddress);
  try {
    await runStartCommands({ shell, machine, onEvent, signal }, commands);
  } finally {
    shell.close();
  }
}
