import { readFileSync } from "node:fs";

/** Of a processor, used by a process; fields 14 and 15 of /proc/PID/stat count hundredths. undefined: it has gone. */
function processorSeconds(pid: number): number | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return (Number(fields[11]) + Number(fields[12])) / 100;
  } catch {
    return undefined;
  }
}

/** A kernel that lives has timers, which take an emulator more of a processor than this, whatever it waits for. */
const LEAST_SHARE = 0.002;
const LOOKS = 12;

/**
 * Tells when a process has stopped for good: it says nothing and uses no processor. An emulator whose processor was halted and is never
 * woken again does so, and would be waited for until the end of all patience.
 */
export class Stillness {
  /** Settles with what is to be said of it. */
  readonly found: Promise<string>;
  readonly #pid: number;
  readonly #timer: NodeJS.Timeout;
  #sinceMs = performance.now();
  #usedS = 0;
  #heard = true;

  /** `pid` of the process, which has been still for good after `stillMs`. */
  constructor(pid: number, stillMs: number) {
    const { promise, resolve } = Promise.withResolvers<string>();
    this.found = promise;
    this.#pid = pid;
    this.#timer = setInterval(() => {
      const usedS = processorSeconds(pid);
      if (usedS === undefined) return;
      const stoodMs = performance.now() - this.#sinceMs;
      const worked = usedS - this.#usedS >= (stoodMs / 1000) * LEAST_SHARE;
      if (!this.#heard && stoodMs < stillMs) return;
      if (this.#heard || worked) this.#startOver(usedS);
      else resolve(`it said nothing and used no processor for ${(stoodMs / 1000).toFixed(0)} s`);
    }, stillMs / LOOKS);
  }

  /** How much of a processor it has used, as far as that is still known. */
  processorS(): number {
    return processorSeconds(this.#pid) ?? this.#usedS;
  }

  /** It has said something. */
  heard(): void {
    this.#heard = true;
  }

  close(): void {
    clearInterval(this.#timer);
  }

  #startOver(usedS: number): void {
    this.#usedS = usedS;
    this.#sinceMs = performance.now();
    this.#heard = false;
  }
}
