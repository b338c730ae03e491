import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Sandbox } from "e2b";

export interface Peer {
  readonly host: string;
  readonly port: number;
}

const program = readFileSync(join(import.meta.dirname, "probe.py"), "utf8");

/** Connects from inside a sandbox. `HOST:PORT` → `connected: FIRST-LINE`, or why not. */
export async function probeFrom(sandbox: Sandbox, peers: readonly Peer[]): Promise<Record<string, string>> {
  await sandbox.files.write("/tmp/probe.py", program, { user: "root" });
  const argument = JSON.stringify(peers.map(({ host, port }) => [host, port]));
  const { stdout } = await sandbox.commands.run(`python3 /tmp/probe.py '${argument}'`);
  const outcomes = JSON.parse(stdout) as string[];
  return Object.fromEntries(peers.map(({ host, port }, at) => [`${host}:${port}`, outcomes[at] ?? ""]));
}

/** Those of the outcomes that are not a refusal by the rules, which answer with a reset. */
export function notRefused(outcomes: Record<string, string>): Record<string, string> {
  return Object.fromEntries(Object.entries(outcomes).filter(([, outcome]) => outcome !== "ECONNREFUSED"));
}
