import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { AenvError, type ForkResult, newSandboxId, newToken, type Sandbox, sandboxNotFound, tokensFor } from "#domain";
import { CheckpointError } from "#driver";
import { capture, requireRestorable, stateDir } from "./checkpoints.ts";
import type { Context } from "./context.ts";
import { create } from "./create.ts";
import { Entry } from "./entry.ts";
import { forget } from "./kill.ts";
import { machineIdOf } from "./record.ts";

export interface ForkRequest {
  readonly source: Entry;
  readonly count: number;
  /** Absent: the source's. */
  readonly timeoutMs: number | undefined;
}

/** Copies of a running sandbox from one moment. The source is busy only while it is captured; the children share the
 *  captured folder, which is never synced (a fork promises no more than the process) and goes when the last is up. */
export async function fork(context: Context, request: ForkRequest): Promise<ForkResult[]> {
  const { source } = request;
  const moment = await context.entries.begin(source, () => captureSource(context, source));
  try {
    const born = Array.from({ length: request.count }, () => {
      const child = childOf(source, request.timeoutMs);
      return context.entries.begin(child, () => create(context, child, moment.state));
    });
    const settled = await Promise.allSettled(born);
    return settled.map((one) => (one.status === "fulfilled" ? { sandbox: one.value } : { error: asError(one.reason) }));
  } finally {
    void context.background.run(`removing what ${source.id} was forked from`, () =>
      rm(moment.dir, { recursive: true, force: true }),
    );
  }
}

interface Moment {
  readonly dir: string;
  readonly state: { readonly dir: string; readonly initKey: string };
}

async function captureSource(context: Context, source: Entry): Promise<Moment> {
  const { incarnation } = source;
  if (incarnation === undefined) throw new AenvError("internal", `running sandbox ${source.id} has no machine`);
  const { driver } = context;
  requireRestorable(driver, { driver: driver.name, driverVersion: incarnation.machine.version, arch: process.arch });
  source.update({ state: "forking" });
  const dir = await mkdtemp(join(context.paths.checkpoints, `fork-${source.id}-`));
  try {
    await capture(context.driver, incarnation.machine, dir, source.record);
    return { dir, state: { dir: stateDir(dir), initKey: source.record.initKey } };
  } catch (error) {
    await rm(dir, { recursive: true, force: true });
    if (error instanceof CheckpointError && !error.machineRuns) {
      context.logger.error("sandbox lost: its machine ended while being forked", { sandboxId: source.id, error });
      await forget(context, source);
      throw sandboxNotFound(source.id);
    }
    throw new AenvError("unavailable", `Sandbox "${source.id}" could not be forked and goes on running`, {
      cause: error,
    });
  } finally {
    if (source.sandbox.state === "forking") source.update({ state: "running" });
  }
}

/** A new identity with the source's state: own id, own token, own key; template, environment, metadata, rules inherited. */
function childOf(source: Entry, timeoutMs: number | undefined): Entry {
  const { sandbox, imageDigest, agentDigest } = source.record;
  const id = newSandboxId();
  const { accessToken: _, trafficToken: __, ...inherited } = sandbox;
  const child: Sandbox = {
    ...inherited,
    id,
    generation: 1,
    state: "creating",
    spec: { ...sandbox.spec, ...(timeoutMs !== undefined && { timeoutMs }) },
    ...tokensFor(sandbox.spec),
    startedAtMs: Date.now(),
    endAtMs: Number.MAX_SAFE_INTEGER,
  };
  return new Entry({ sandbox: child, machineId: machineIdOf(id, 1), imageDigest, agentDigest, initKey: newToken() });
}

function asError(reason: unknown): Error {
  return reason instanceof Error ? reason : new Error(String(reason));
}
