import { type ChildProcess, spawn } from "node:child_process";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { startTicks } from "#lib/proc";
import { forwarderName } from "#proxy";
import { fromSetUp } from "../../e2e/start.ts";

interface LogLine {
  readonly level: string;
  readonly msg: string;
  readonly error?: string;
  readonly address?: string;
  readonly tls?: string;
}

/** The real edge as a process of its own, on free ports. */
export class EdgeProcess {
  readonly port: number;
  /** Where it was asked to speak TLS. */
  readonly tlsPort: number;
  /** As aenvd knows it. */
  readonly forwarder: string;
  readonly pid: number;
  /** What it has logged as errors. */
  readonly errors: readonly string[];
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown>;

  private constructor(child: ChildProcess, listens: LogLine, errors: readonly string[], ended: Promise<unknown>) {
    const portOf = (address: string | undefined): number => Number(address?.slice(address.lastIndexOf(":") + 1));
    this.port = portOf(listens.address);
    this.tlsPort = portOf(listens.tls);
    this.pid = child.pid ?? 0;
    this.forwarder = forwarderName(this.pid, startTicks(this.pid) ?? 0n);
    this.errors = errors;
    this.#child = child;
    this.#ended = ended;
  }

  /** With the sockets of an aenvd in `run/` of a data folder, and further flags. Returns when it listens. */
  static async start(dataDir: string, flags: readonly string[] = []): Promise<EdgeProcess> {
    const program = join(fromSetUp("AENV_TEST_BIN_DIR"), "edge");
    const child = spawn(program, ["-data", dataDir, "-listen", "127.0.0.1:0", ...flags], {
      stdio: ["ignore", "ignore", "pipe"],
    });
    const ended = new Promise((resolve) => child.once("close", resolve));
    const errors: string[] = [];
    const listening = Promise.withResolvers<LogLine>();
    createInterface({ input: child.stderr }).on("line", (text) => {
      if (!text.startsWith("{")) return void errors.push(text);
      const line = JSON.parse(text) as LogLine;
      if (line.level === "ERROR") errors.push(line.error === undefined ? line.msg : `${line.msg}: ${line.error}`);
      if (line.msg === "edge listens") listening.resolve(line);
    });
    void ended.then(() => listening.reject(new Error(`the edge did not start: ${errors.join("; ")}`)));
    child.once("error", listening.reject);
    return new EdgeProcess(child, await listening.promise, errors, ended);
  }

  async close(): Promise<void> {
    this.#child.kill("SIGTERM");
    await this.#ended;
  }
}
