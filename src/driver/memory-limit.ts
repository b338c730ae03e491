import { MIB } from "#domain";
import type { Cgroups } from "./cgroup/index.ts";
import type { MemoryReading } from "./driver.ts";

/** What the runtime takes until it has given back what a killed program held, and more. */
export const ROOM_BYTES = 16 * MIB;
/** After a limit could not be lowered: the server waits while the kernel looks for what can be dropped, and for the disk perhaps. */
const LOWER_AGAIN_MS = 10_000;

/**
 * The limit that a machine's cgroup is held to. When the host's kernel has killed a program for it, nothing is free yet: what that held
 * belongs to the runtime, which takes some 20 to 45 ms to give it back, and needs memory for that. Without it the kernel goes on to kill
 * what the runtime needs, such as the process that all new ones are forked from. So the limit is higher from the first look after
 * a kill to the first when that much is free below it, or to the next when the kernel would have to end somebody for it. See docs/decisions/0044-who-looks-after-memory.md.
 */
export class MemoryLimit {
  readonly #limitBytes: number;
  readonly #cgroups: Cgroups;
  readonly #cgroup: string;
  /** As at the last look. Kills that a server before this one has seen cost a look more until the limit is the lower one. */
  #oomKills = 0;
  /** How much higher the limit is. Before it has been lowered once that is the most it may be: a server before this one may have ended
   *  while it was. */
  #roomBytes = ROOM_BYTES;
  #lowerAtMs = 0;

  constructor(cgroups: Cgroups, cgroup: string, limitBytes: number) {
    this.#cgroups = cgroups;
    this.#cgroup = cgroup;
    this.#limitBytes = limitBytes;
  }

  /** undefined: the machine has ended. */
  read(): MemoryReading | undefined {
    const reading = this.#cgroups.memory(this.#cgroup, this.#limitBytes + this.#roomBytes);
    if (reading === undefined) return undefined;
    const { usedBytes, oomKills } = reading;
    const nowMs = performance.now();
    if (oomKills > this.#oomKills) {
      this.#giveRoom(ROOM_BYTES);
      this.#oomKills = oomKills;
    } else if (this.#roomBytes > 0 && usedBytes + ROOM_BYTES <= this.#limitBytes && nowMs >= this.#lowerAtMs) {
      // Set first, so that an error delays the next try too.
      this.#lowerAtMs = nowMs + LOWER_AGAIN_MS;
      if (this.#giveRoom(0)) this.#lowerAtMs = 0;
    }
    return reading;
  }

  #giveRoom(bytes: number): boolean {
    const isSet = this.#cgroups.limitMemory(this.#cgroup, this.#limitBytes + bytes);
    if (isSet) this.#roomBytes = bytes;
    return isSet;
  }
}
