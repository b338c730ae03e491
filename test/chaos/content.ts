import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

/** Where the program of guest.py listens. */
export const GUEST_PORT = 7001;
const BLOCKS = 4096;

/** What a sandbox has to hold: `seed` makes its bytes, `writes` counts how often they were written. */
export interface Content {
  readonly seed: string;
  readonly writes: number;
}

/** What a new sandbox of the template holds. */
export const FRESH: Content = { seed: "template", writes: 1 };

/** What guest.py tells. */
export interface Told extends Content {
  readonly build: string;
  readonly memory: string;
  readonly file: string;
}

/** What differs; undefined: every byte is what it has to be. */
export function wrongIn(told: Told, { seed, writes }: Content): string | undefined {
  const due = { seed, writes, memory: digestOf("memory", seed), file: digestOf("file", seed) };
  const wrong = Object.entries(due).filter(([name, value]) => told[name as keyof Content] !== value);
  if (wrong.length === 0) return undefined;
  return wrong.map(([name, value]) => `${name} is ${told[name as keyof Content]}, not ${value}`).join("; ");
}

function digestOf(kind: string, seed: string): string {
  const digest = createHash("sha256");
  for (let at = 0; at < BLOCKS; at += 1) digest.update(createHash("sha256").update(`${kind}:${seed}:${at}`).digest());
  return digest.digest("hex");
}

/** Start command of the template: the program, said to be of this build. */
export function startCommand(build: string): string {
  const program = readFileSync(new URL("guest.py", import.meta.url)).toString("base64");
  return `echo ${program} | base64 -d > /tmp/guest.py; exec python3 /tmp/guest.py ${build} ${GUEST_PORT}`;
}

export const READY_COMMAND = "[ -f /tmp/ready ]";
