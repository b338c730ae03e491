import { setTimeout as sleep } from "node:timers/promises";
import { commandLine, processIds, threadStates } from "#lib/proc";
import type { MachineSpec } from "../driver.ts";
import type { FakeAgent } from "./host.ts";

const START_TIMEOUT_MS = 5000;
const STOP_TIMEOUT_MS = 5000;
/** As long as a timer can be: the process is ended by its machine. */
const LIFE_MS = 2 ** 31 - 1;

/** An agent that runs as an ordinary process. */
export class AgentProcess {
  readonly pid: number;
  /** Settles (never rejects) when the process has ended. */
  readonly ended: Promise<void>;

  private constructor(pid: number, ended: Promise<void>) {
    this.pid = pid;
    this.ended = ended;
  }

  /** Throws when it does not start. */
  static async start({ envdPath, runner, listenOn }: FakeAgent, spec: MachineSpec): Promise<AgentProcess> {
    const argv = [envdPath, "-listen", listenOn(spec)];
    let failure: unknown;
    const run = runner.run(argv, { timeoutMs: LIFE_MS, check: false });
    const ended = run.then(
      ({ stderr }) => {
        failure = new Error(new TextDecoder().decode(stderr).trim().slice(-500));
      },
      (error) => {
        failure = error;
      },
    );
    const giveUpAtMs = Date.now() + START_TIMEOUT_MS;
    while (failure === undefined && Date.now() < giveUpAtMs) {
      const pid = findByCommandLine(argv);
      if (pid !== undefined) return new AgentProcess(pid, ended);
      await sleep(2);
    }
    throw new Error(`agent of fake machine ${spec.id} did not start`, { cause: failure });
  }

  signal(name: NodeJS.Signals): void {
    try {
      process.kill(this.pid, name);
    } catch {
      // It ended by itself.
    }
  }

  /** Returns when it stands still: the signal is one thread's to take, and the others go on until it has been. */
  async stop(): Promise<void> {
    this.signal("SIGSTOP");
    const giveUpAtMs = Date.now() + STOP_TIMEOUT_MS;
    while (hasThreadsThatRun(this.pid)) {
      if (Date.now() > giveUpAtMs) throw new Error(`agent ${this.pid} of a fake machine does not stop`);
      await sleep(1);
    }
  }

  async kill(): Promise<void> {
    this.signal("SIGKILL");
    await this.ended;
  }
}

/** A runner does not tell the pid of what it starts; the address is this process's alone. */
function findByCommandLine(argv: readonly string[]): number | undefined {
  const wanted = argv.join("\0");
  return processIds().find((pid) => commandLine(pid).join("\0") === wanted);
}

function hasThreadsThatRun(pid: number): boolean {
  return threadStates(pid).some((state) => state !== "T" && state !== "t");
}
