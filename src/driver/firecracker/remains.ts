import { readdir } from "node:fs/promises";
import { join } from "node:path";
import type { MachineId } from "../driver.ts";
import { MachineFolder } from "./folder.ts";
import type { Parts } from "./parts.ts";

export function machinesDir(parts: Pick<Parts, "options">): string {
  return join(parts.options.dir, "machines");
}

/** Ids of all machines of which anything is left. A jail without one is none's: nothing was ever started in it. */
export function findLeftovers(parts: Parts): Promise<MachineId[]> {
  return readdir(machinesDir(parts));
}

/** Removes all that is left of a machine, its folder last: it says which jail is its own. Repeatable. `writing`: in its folder,
 *  until then. */
export async function removeMachine(
  parts: Parts,
  id: MachineId,
  writing: Promise<void> = Promise.resolve(),
): Promise<void> {
  const folder = new MachineFolder(machinesDir(parts), id);
  const record = folder.read();
  if (record !== undefined) await parts.jails.remove(record.jail);
  await writing;
  await folder.remove();
  // What is left of it is removed; a cache that could not be made smaller is no reason to say otherwise.
  await parts.layers.trim().catch((error: unknown) => {
    parts.options.logger.warn("assembled memories could not be trimmed", { error });
  });
}
