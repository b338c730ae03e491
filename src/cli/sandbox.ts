import type { ApiClient, CreateSandbox, SandboxDetail, SandboxHandle } from "./api.ts";
import type { Context } from "./context.ts";
import { CliError, EXIT } from "./errors.ts";
import { onEnding } from "./io.ts";
import { whileWaiting } from "./progress.ts";

/** A sandbox that runs. Throws CliError (conflict) for a paused one, which is not resumed. */
export async function runningSandbox(api: ApiClient, id: string, signal?: AbortSignal): Promise<SandboxDetail> {
  const sandbox = await api.getSandbox(id, signal);
  if (sandbox.state !== "paused") return sandbox;
  throw new CliError(EXIT.conflict, `sandbox ${id} is paused`, { hint: `run \`aenv resume ${id}\` first` });
}

/** Whoever interrupts a start does not want the sandbox: it is awaited, so that its id is known, and deleted. A second
 *  signal does not wait; the sandbox's timeout is the net then. */
export async function createUninterrupted(
  { io }: Context,
  api: ApiClient,
  request: CreateSandbox,
): Promise<SandboxHandle> {
  const interrupted = new CliError(EXIT.interrupted, "interrupted before the sandbox was ready");
  const giveUp = new AbortController();
  let signals = 0;
  const forget = onEnding(io, () => {
    signals += 1;
    if (signals > 1) giveUp.abort(interrupted);
  });
  try {
    const creating = api.createSandbox(request, giveUp.signal);
    const sandbox = await whileWaiting(io, `starting a sandbox of ${request.templateID}`, creating);
    if (signals === 0) return sandbox;
    await api.deleteSandbox(sandbox.sandboxID);
    throw interrupted;
  } finally {
    forget();
  }
}
