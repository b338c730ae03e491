import type { Machine, MachineExit } from "#driver";

type Listener = (exit: MachineExit) => void;
type Ending = Pick<Machine, "exited">;

interface End {
  exit: MachineExit | undefined;
  /** Each in an object of its own: one function may listen twice. */
  readonly listening: Set<{ readonly listener: Listener }>;
}

const ends = new WeakMap<Ending, End>();

/**
 * Calls `listener` when the machine has ended, unless it is disposed of before. `Machine.exited` itself keeps everybody who ever
 * waited for it, and a machine may be paused and thawed any number of times: so it is waited for once, for all.
 */
export function onEnd(machine: Ending, listener: Listener): Disposable {
  const end = endOf(machine);
  const own = { listener };
  end.listening.add(own);
  if (end.exit !== undefined) void machine.exited.then((exit) => tell(end, exit));
  return { [Symbol.dispose]: () => void end.listening.delete(own) };
}

/** False until it is heard of. */
export function hasEnded(machine: Ending): boolean {
  return endOf(machine).exit !== undefined;
}

function endOf(machine: Ending): End {
  const known = ends.get(machine);
  if (known !== undefined) return known;
  const end: End = { exit: undefined, listening: new Set() };
  ends.set(machine, end);
  void machine.exited.then((exit) => {
    end.exit = exit;
    tell(end, exit);
  });
  return end;
}

function tell({ listening }: End, exit: MachineExit): void {
  for (const own of listening) {
    listening.delete(own);
    own.listener(exit);
  }
}
