import { readdir } from "node:fs/promises";
import {
  type MachineCapture,
  newSandboxId,
  newTemplateId,
  newToken,
  ownInit,
  type Snapshot,
  type SnapshotRequest,
  type StartCommands,
  type StartEvent,
} from "#domain";
import { GuestShell } from "#guest";
import { Cleanup } from "#lib/cleanup";
import { fault } from "#lib/fault";
import {
  type CheckpointManifest,
  capture,
  removeCheckpoint,
  requireRestorable,
  stateDir,
  totalBytes,
} from "./checkpoints.ts";
import { type Context, snapshotLease } from "./context.ts";
import { captureDiskLive } from "./disk-capture.ts";
import type { Entry, Incarnation } from "./entry.ts";
import { type LaunchPlan, launch, whileAlive } from "./launch.ts";
import { captureLive } from "./live-capture.ts";
import { machineIdOf } from "./record.ts";
import type { StateSource } from "./run.ts";
import { runStartCommands } from "./start-commands.ts";

/** Snapshots that sandboxes start from: made once per template build or of a running sandbox, kept until nobody starts from
 *  them. */
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
    const { id, capture: what, initKey } = snapshot;
    return { dir: stateDir(this.#context.paths.snapshot(id)), ...(what !== "disk" && { initKey }) };
  }

  async make(request: SnapshotRequest, onStart: (event: StartEvent) => void, signal: AbortSignal): Promise<Snapshot> {
    const { driver, store, paths, agentDigest, envdVersion } = this.#context;
    const id = newTemplateId();
    const dir = paths.snapshot(id);
    const initKey = newToken();
    const plan = this.#plan(id, initKey, request);
    let incarnation: Incarnation | undefined;
    try {
      incarnation = await launch(this.#context, plan, {});
      signal.throwIfAborted();
      await bringUp(incarnation, request, onStart, signal);
      // A restored agent answers by what it was told last, until it is told who it is: nobody knows this token.
      const { machine, guest } = incarnation;
      await whileAlive(machine, guest.init({ ...plan.identity, accessToken: newToken() }, initKey));
      await fault("snapshot.started", machine.id);
      const digests = { imageDigest: request.image.digest, agentDigest };
      const manifest = await capture(driver, machine, dir, digests, { durable: true });
      await fault("snapshot.captured", machine.id);
      await store.sync([dir, paths.agent(agentDigest)]);
      await fault("snapshot.synced", machine.id);
      await this.#end(incarnation);
      await fault("snapshot.ended", machine.id);
      const boot = bootOf(request.commands, plan.imageInit);
      return { id, ...factsOf(manifest), envdVersion, initKey, ...inherited(request), ...boot, env: request.env };
    } catch (error) {
      // The image is let go only when nothing runs on it any more.
      if (incarnation !== undefined) await this.#end(incarnation);
      await this.remove(id);
      throw error;
    }
  }

  /** Captures a running sandbox, which goes on, as its operation. `env`: what it has from its template. On stable storage
   *  when it returns. Throws what `captureLive` throws; nothing of the snapshot is left then. */
  take(entry: Entry, env: Readonly<Record<string, string>>, what: MachineCapture): Promise<Snapshot> {
    const { driver, store, paths, logger } = this.#context;
    return captureLive(this.#context, entry, { state: "snapshotting", done: "captured" }, async (incarnation) => {
      const { machine } = incarnation;
      const startedAtMs = performance.now();
      const { sandbox, imageDigest, agentDigest, initKey, boot } = entry.record;
      const id = newTemplateId();
      const dir = paths.snapshot(id);
      await using undo = new Cleanup();
      undo.add(() => this.remove(id));
      await store.mount(imageDigest, snapshotLease(id));
      const manifest =
        what === "disk"
          ? await captureDiskLive(this.#context, entry, incarnation, dir)
          : await capture(driver, machine, dir, entry.record, { durable: true });
      await fault("snapshot.captured", machine.id);
      await store.sync([dir, paths.agent(agentDigest)]);
      await fault("snapshot.synced", machine.id);
      undo.keep();
      logger.info("sandbox captured", {
        sandboxId: entry.id,
        generation: sandbox.generation,
        reason: `snapshot ${id}${what === "disk" ? ", of the disk alone" : ""}`,
        durationMs: Math.round(performance.now() - startedAtMs),
      });
      const origin = { parentId: sandbox.snapshotId, sandboxId: sandbox.id, ...(boot !== undefined && { boot }) };
      const { envdVersion, spec } = sandbox;
      return { id, ...factsOf(manifest), envdVersion, initKey, ...inherited(spec), env, ...origin };
    });
  }

  async remove(snapshotId: string): Promise<void> {
    const use = this.#users.get(snapshotId);
    if (use !== undefined) await new Promise<void>((resolve) => use.onIdle.push(resolve));
    await this.#context.ladder.dropSnapshot(snapshotId);
    await removeCheckpoint(this.#context.paths.snapshot(snapshotId));
    await fault("snapshot.removed");
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
        generation: 0,
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

/** What a manifest says of its snapshot. */
function factsOf(manifest: CheckpointManifest) {
  const { files: _, ...facts } = manifest;
  return { ...facts, sizeBytes: totalBytes(manifest) };
}

/** What every sandbox of a snapshot has of whom it was captured from. */
function inherited(from: Pick<Snapshot, "resources" | "defaultUser" | "defaultWorkdir">) {
  const { resources, defaultUser, defaultWorkdir } = from;
  return { resources, defaultUser, ...(defaultWorkdir !== undefined && { defaultWorkdir }) };
}

function bootOf(commands: StartCommands, init: readonly string[] | undefined): Pick<Snapshot, "boot"> {
  const boot = { ...commands, ...(init !== undefined && { init }) };
  return Object.keys(boot).length === 0 ? {} : { boot };
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
