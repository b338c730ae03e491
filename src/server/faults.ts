import { appendFileSync, readFileSync, renameSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { armFaults, FAULT_POINTS, type FaultPoint } from "#lib/fault";
import { isMissing } from "#lib/files";
import type { Logger } from "#lib/log";
import { commandLine, processIds, startTicks } from "#lib/proc";
import { localRunner } from "#lib/spawn";
import { type Config, dataPaths } from "../config.ts";

/** Names a folder of orders. Of the environment alone: neither a file, a flag nor the API can make a server kill. */
export const FAULTS_VARIABLE = "AENV_FAULTS";

/** Services, by their names. */
export type ServiceVictim = "aenvd" | "blobd" | "edge" | "keeper";

/** Of the machine that the operation works on: the runtime's process, the one that serves its files (gVisor), the command that does
 *  something to it (gVisor), or the agent inside (gVisor), its first process. But for the command each is the end of the machine. */
export type MachineVictim = "runtime" | "gofer" | "command" | "agent";

/** Who can be killed. */
export type Victim = ServiceVictim | MachineVictim;

/** What is to happen at a point, once. */
export interface FaultOrder {
  readonly point: FaultPoint;
  /** How many passes of the point go by before. */
  readonly after?: number;
  readonly kill?: readonly Victim[];
  /** Kills so much later, while the operation goes on: in the middle of whatever it does by then. */
  readonly delayMs?: number;
  /** Thrown at the point, as the system call after it would. */
  readonly error?: "ENOSPC";
}

/** An order that was carried out, but for the end of aenvd, which follows: a line of the folder's `fired`. */
export interface FaultFired extends FaultOrder {
  readonly machineId?: string;
  /** How many processes were killed, aenvd included. */
  readonly killed: number;
}

/** Files of the folder: orders still to come, in their order; those carried out; the points that were passed, a line each. */
export const FAULT_FILES = { orders: "orders.json", fired: "fired", passed: "passed" } as const;

/** What is killed of a machine, by the ends of the names of programs. The agent is no process of this host: it ends with the runtime's. */
const PROGRAMS: Readonly<Record<MachineVictim, readonly string[]>> = {
  runtime: ["runsc-sandbox", "firecracker"],
  gofer: ["runsc-gofer"],
  command: ["/runsc", "/sentrysave"],
  agent: ["runsc-sandbox"],
};
/** One that is being started may not be there yet; and how long a machine may take to end of what was killed of it. */
const FIND_MS = 2_000;
const ENDS_MS = 10_000;

/** Arms the faults that the environment asks for; says so loudly. Without the variable nothing is done. */
export function armOrderedFaults(config: Pick<Config, "dataDir" | "runscPath">, logger: Logger): void {
  const dir = process.env[FAULTS_VARIABLE];
  if (dir === undefined || dir === "") return;
  requireOwn(dir);
  logger.error(`FAULTS ARE ARMED by ${FAULTS_VARIABLE}: this server kills its own processes when told to`, {
    path: dir,
  });
  const orders = new Orders(dir);
  let isEnding = false;
  armFaults(async (point, machineId) => {
    // What others pass while this process is about to end is for the next one.
    const order = isEnding ? undefined : orders.take(point);
    if (order === undefined) return;
    isEnding = order.kill?.includes("aenvd") === true && order.delayMs === undefined;
    logger.warn(`fault at ${point}: ${order.error ?? `kill ${order.kill?.join(", ")}`}`, {
      ...(machineId !== undefined && { machineId }),
    });
    const carryOut = async (): Promise<void> => {
      const isLast = order.kill?.includes("aenvd") === true;
      const killed = (await killOthers(order.kill ?? [], config, machineId)) + (isLast ? 1 : 0);
      orders.note({ ...order, killed, ...(machineId !== undefined && { machineId }) });
      if (isLast) process.kill(process.pid, "SIGKILL");
    };
    if (order.delayMs === undefined) await carryOut();
    else
      setTimeout(
        () => void carryOut().catch((error: unknown) => logger.error(`fault at ${point}`, { error })),
        order.delayMs,
      );
    if (order.error !== undefined) {
      throw Object.assign(new Error(`${order.error}: made by a fault at ${point}`), { code: order.error });
    }
  });
}

/** An order kills as root: it is taken from a folder only that nobody else can write to. */
function requireOwn(dir: string): void {
  const { uid, mode } = statSync(dir);
  if (uid === process.getuid?.() && (mode & 0o022) === 0) return;
  throw new Error(`${FAULTS_VARIABLE}: ${dir} can be written to by others; chown it to this user and chmod go-w it`);
}

class Orders {
  readonly #dir: string;
  /** How often each point was passed while it was the next order's. */
  readonly #passes = new Map<FaultPoint, number>();
  readonly #passed = new Set<FaultPoint>();

  constructor(dir: string) {
    this.#dir = dir;
  }

  /** The order that is due at this point now, which is carried out once: by this process or none. */
  take(point: FaultPoint): FaultOrder | undefined {
    if (!this.#passed.has(point)) {
      this.#passed.add(point);
      appendFileSync(join(this.#dir, FAULT_FILES.passed), `${point}\n`);
    }
    const [order, ...rest] = this.#read();
    if (order?.point !== point) return undefined;
    const passes = this.#passes.get(point) ?? 0;
    this.#passes.set(point, passes + 1);
    if (passes < (order.after ?? 0)) return undefined;
    this.#passes.clear();
    const orders = join(this.#dir, FAULT_FILES.orders);
    writeFileSync(`${orders}.new`, JSON.stringify(rest));
    renameSync(`${orders}.new`, orders);
    return order;
  }

  note(fired: FaultFired): void {
    appendFileSync(join(this.#dir, FAULT_FILES.fired), `${JSON.stringify(fired)}\n`);
  }

  #read(): readonly FaultOrder[] {
    try {
      return (JSON.parse(readFileSync(join(this.#dir, FAULT_FILES.orders), "utf8")) as FaultOrder[]).map(checked);
    } catch (error) {
      if (isMissing(error)) return [];
      throw error;
    }
  }
}

function checked(order: FaultOrder): FaultOrder {
  if (FAULT_POINTS.includes(order.point)) return order;
  throw new Error(`there is no fault point ${order.point}`);
}

/** Returns, when they are gone, how many there were. This process is left, so that it can go last. */
async function killOthers(
  victims: readonly Victim[],
  config: Pick<Config, "dataDir" | "runscPath">,
  machineId: string | undefined,
): Promise<number> {
  const { run } = dataPaths(config.dataDir);
  let killed = 0;
  for (const victim of victims) {
    if (victim === "aenvd") continue;
    if (isOfMachine(victim)) killed += await killOf(machineId, victim, config.runscPath);
    else if (await killNow(Number(readFileSync(join(run, `${victim}.pid`), "utf8")))) killed += 1;
  }
  return killed;
}

function isOfMachine(victim: Victim): victim is MachineVictim {
  return victim in PROGRAMS;
}

async function killOf(machineId: string | undefined, victim: MachineVictim, runscPath: string): Promise<number> {
  const ends = victim === "command" ? [] : await processesOf(machineId, "runtime");
  const pids = victim === "runtime" ? ends : await processesOf(machineId, victim);
  let refusal: unknown;
  if (victim !== "agent") for (const pid of pids) await killNow(pid);
  else if (machineId !== undefined && pids[0] !== undefined) {
    // Refused where the operation is ending the machine itself just now: that end is waited for like any other.
    await killAgent(runscPath, machineId, pids[0]).catch((error: unknown) => (refusal = error));
  }
  const giveUpAtMs = performance.now() + ENDS_MS;
  while (ends.some((pid) => startTicks(pid) !== undefined)) {
    if (performance.now() > giveUpAtMs) {
      throw new Error(`machine ${machineId} goes on without its ${victim}`, { cause: refusal });
    }
    await sleep(2);
  }
  return pids.length;
}

async function killNow(pid: number): Promise<boolean> {
  const ticks = startTicks(pid);
  if (ticks === undefined) return false;
  process.kill(pid, "SIGKILL");
  while (startTicks(pid) === ticks) await sleep(1);
  return true;
}

/** The runtime's own way to its first process. */
async function killAgent(runscPath: string, machineId: string, runtimePid: number): Promise<void> {
  const root = commandLine(runtimePid).find((arg) => arg.startsWith("--root="));
  if (root === undefined) throw new Error(`process ${runtimePid} of machine ${machineId} names no root`);
  await localRunner().run([runscPath, root, "kill", machineId, "KILL"]);
}

/** Machines carry their id in the command lines of their processes. */
async function processesOf(machineId: string | undefined, victim: MachineVictim): Promise<readonly number[]> {
  const isIts = (pid: number): boolean => {
    const [program = "", ...args] = commandLine(pid);
    const isSuch = PROGRAMS[victim].some((name) => program.endsWith(name));
    return isSuch && machineId !== undefined && args.some((arg) => arg.includes(machineId));
  };
  for (const giveUpAtMs = performance.now() + FIND_MS; performance.now() < giveUpAtMs; await sleep(2)) {
    const pids = processIds().filter(isIts);
    if (pids.length > 0) return pids;
  }
  return [];
}
