import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { type ForkResult, newSandboxId, newToken, type Sandbox, tokensFor } from "#domain";
import { fault } from "#lib/fault";
import { capture, stateDir } from "./checkpoints.ts";
import type { Context } from "./context.ts";
import { create } from "./create.ts";
import { Entry } from "./entry.ts";
import { captureLive } from "./live-capture.ts";
import { machineIdOf } from "./record.ts";
import type { StateSource } from "./run.ts";

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
      return context.entries.begin(child, () => create(context, child, moment.state, `a copy of ${source.id}`));
    });
    const settled = await Promise.allSettled(born);
    await fault("fork.born", source.record.machineId);
    return settled.map((one) => (one.status === "fulfilled" ? { sandbox: one.value } : { error: asError(one.reason) }));
  } finally {
    void context.background.run(`removing what ${source.id} was forked from`, () =>
      rm(moment.dir, { recursive: true, force: true }),
    );
  }
}

interface Moment {
  readonly dir: string;
  readonly state: StateSource;
}

function captureSource(context: Context, source: Entry): Promise<Moment> {
  return captureLive(context, source, { state: "forking", done: "forked" }, async ({ machine }) => {
    const dir = await mkdtemp(join(context.paths.checkpoints, `fork-${source.id}-`));
    try {
      await capture(context.driver, machine, dir, source.record, { durable: false });
      await fault("fork.captured", machine.id);
    } catch (error) {
      await rm(dir, { recursive: true, force: true });
      throw error;
    }
    return { dir, state: { dir: stateDir(dir), initKey: source.record.initKey } };
  });
}

/** A new identity with the source's state: own id, own tokens, own key; template, environment, metadata, rules inherited. */
function childOf(source: Entry, timeoutMs: number | undefined): Entry {
  const { sandbox, imageDigest, agentDigest, boot } = source.record;
  const id = newSandboxId();
  const { accessToken: _, trafficToken: __, ...inherited } = sandbox;
  const child: Sandbox = {
    ...inherited,
    id,
    forkedFrom: sandbox.id,
    generation: 1,
    state: "creating",
    spec: { ...sandbox.spec, ...(timeoutMs !== undefined && { timeoutMs }) },
    ...tokensFor(sandbox.spec),
    startedAtMs: Date.now(),
    endAtMs: Number.MAX_SAFE_INTEGER,
  };
  const made = { imageDigest, agentDigest, ...(boot !== undefined && { boot }) };
  return new Entry({ sandbox: child, machineId: machineIdOf(id, 1), ...made, initKey: newToken() });
}

function asError(reason: unknown): Error {
  return reason instanceof Error ? reason : new Error(String(reason));
}
