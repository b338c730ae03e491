import { MIB } from "#domain";
import type { Cgroups } from "./cgroup/index.ts";
import type { MemoryReading } from "./driver.ts";

/** What the runtime takes until it has given back what a killed program held, and more. */
export const ROOM_BYTES = 16 * MIB;

/**
 * The limit that a machine's cgroup is held to. When the host's kernel has killed a program for it, nothing is free yet: what that held
 * belongs to the runtime, which takes some 20 to 45 ms to give it back, and needs memory for that. Without it the kernel goes on to kill
 * what the runtime needs, such as the process that all new ones are forked from. So the limit is higher from the first look after
 * a kill to the first when that much is free below it. See docs/decisions/0044-who-looks-after-memory.md.
 */
export class MemoryLimit {
  readonly limitBytes: number;
  readonly #cgroups: Cgroups;
  readonly #cgroup: string;
  /** As at the last look. */
  #oomKills: number | undefined;
  /** A server before this one may have ended while the limit was higher. */
  #roomBytes = ROOM_BYTES;

  constructor(cgroups: Cgroups, cgroup: string, limitBytes: number) {
    this.#cgroups = cgroups;
    this.#cgroup = cgroup;
    this.limitBytes = limitBytes;
  }

  /** undefined: the machine has ended. */
  read(): MemoryReading | undefined {
    const reading = this.#cgroups.memory(this.#cgroup, this.limitBytes + this.#roomBytes);
    if (reading === undefined) return undefined;
    const hasKilled = reading.oomKills > (this.#oomKills ?? reading.oomKills);
    if (hasKilled) this.#giveRoom(ROOM_BYTES);
    else if (reading.usedBytes + ROOM_BYTES <= this.limitBytes) this.#giveRoom(0);
    this.#oomKills = reading.oomKills;
    return reading;
  }

  #giveRoom(bytes: number): void {
    if (bytes === this.#roomBytes) return;
    this.#cgroups.limitMemory(this.#cgroup, this.limitBytes + bytes);
    this.#roomBytes = bytes;
  }
}
