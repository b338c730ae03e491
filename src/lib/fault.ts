/**
 * Named points between two effects that outlive this process, at which a test lets something die. Off unless the server was
 * started with them armed (`src/server/faults.ts`), and then next to free.
 */

/** Every point there is, named by operation and what has just been done. `npm run chaos` reaches each of them. */
export const FAULT_POINTS = [
  "create.recorded",
  "launch.prepared",
  "launch.started",
  "launch.answering",
  "launch.ready",
  "run.recorded",
  "pause.recorded",
  "pause.frozen",
  "pause.captured",
  "pause.synced",
  "pause.paused",
  "pause.ended",
  "checkpoint.written",
  "checkpoint.undescribed",
  "resume.recorded",
  "resume.running",
  "fork.captured",
  "fork.born",
  "kill.recorded",
  "kill.ended",
  "kill.stopped",
  "kill.released",
  "kill.forgotten",
  "snapshot.started",
  "snapshot.captured",
  "snapshot.synced",
  "snapshot.ended",
  "snapshot.named",
  "snapshot.removed",
  "build.captured",
  "build.published",
  "freeze.offered",
  "freeze.frozen",
  "reclaim.room",
  "reclaim.taken",
  "reclaim.returned",
  "thaw.begun",
  "thaw.awake",
  "clone.frozen",
  "clone.thawed",
  "clone.told",
  "clone.stopped",
  "clone.released",
  "copy.kept",
  "copy.thawed",
  "copy.told",
  "copy.stopped",
  "copy.released",
  "swap.reserved",
  "swap.on",
  "swap.off",
  "recover.slots",
  "recover.sandbox",
  "recover.sandboxes",
  "recover.machines",
  "recover.done",
] as const;

export type FaultPoint = (typeof FAULT_POINTS)[number];

/** What happens at a point. `machineId`: of the machine the operation works on, where it has one. */
export type FaultHandler = (point: FaultPoint, machineId: string | undefined) => Promise<void>;

let armed: FaultHandler | undefined;

/** Passes a point: nothing happens, unless faults are armed. Then it may end this process, or throw. */
export function fault(point: FaultPoint, machineId?: string): Promise<void> | undefined {
  if (armed === undefined) return undefined;
  return armed(point, machineId);
}

/** `undefined` disarms. */
export function armFaults(handler: FaultHandler | undefined): void {
  armed = handler;
}
