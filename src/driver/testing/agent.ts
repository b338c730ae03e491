import { once } from "node:events";
import { Agent, type IncomingMessage, request } from "node:http";
import { connect } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { type Client, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { Process, type ProcessEvent } from "#gen/process/process_pb.js";

export interface Finished {
  readonly exitCode: number;
  /** What the agent says of the end: `exit status 1`, `signal: killed`. */
  readonly status: string;
  readonly stdout: string;
  readonly stderr: string;
}

/** How much slower than a usual machine this one is, where it is emulated: every wait for an answer is as much longer. */
const SLOWNESS = Number(process.env.AENV_TEST_SLOWNESS ?? 1);

/** The agent of a machine under test, at `host:port`. */
export class TestAgent {
  readonly #address: string;
  readonly #process: Client<typeof Process>;
  /** The kernel gives a connection up some ten seconds after nothing has come by it for so long: a machine that shares an emulated
   *  processor with others may say nothing for longer. */
  readonly #connections = new Agent({ keepAlive: true, keepAliveMsecs: patience(10_000) });
  readonly #closed = new AbortController();

  constructor(address: string) {
    this.#address = address;
    this.#process = createClient(
      Process,
      createConnectTransport({
        httpVersion: "1.1",
        baseUrl: `http://${address}`,
        acceptCompression: [],
        nodeOptions: { agent: this.#connections },
      }),
    );
  }

  /** Waits until it answers. Throws when it does not within `timeoutMs`. */
  async ready(timeoutMs = 15_000): Promise<void> {
    await eventually(timeoutMs, () => this.#ask("GET", "/health", { timeoutMs: 500 }));
  }

  /** Whether it answers within so many ms: asked of one that should not, so all of them are waited. */
  async answers(timeoutMs: number): Promise<boolean> {
    return this.#ask("GET", "/health", { timeoutMs }).then(
      () => true,
      () => false,
    );
  }

  /** Runs a shell command to its end. */
  async run(command: string, options: { readonly user?: string; readonly timeoutMs?: number } = {}): Promise<Finished> {
    const events = this.#start("sh", ["-c", command], options.user ?? "root", {
      timeoutMs: patience(options.timeoutMs ?? 60_000),
    });
    let [stdout, stderr] = ["", ""];
    for await (const event of events) {
      if (event.case === "data" && event.value.output.case === "stdout") stdout += decode(event.value.output.value);
      if (event.case === "data" && event.value.output.case === "stderr") stderr += decode(event.value.output.value);
      if (event.case === "end") {
        return {
          exitCode: event.value.exitCode,
          status: event.value.status,
          stdout: stdout.trim(),
          stderr: stderr.trim(),
        };
      }
    }
    throw new Error(`the agent said nothing of the end of: ${command}`);
  }

  /** Starts a command that goes on, for `deadlineMs` of the machine's running time at most; its output is not read. Returns its
   *  pid. */
  async spawn(
    command: string,
    { user = "root", deadlineMs }: { readonly user?: string; readonly deadlineMs?: number } = {},
  ): Promise<number> {
    const limits = { ...(deadlineMs !== undefined && { deadlineMs }) };
    for await (const event of this.#start("sh", ["-c", command], user, limits)) {
      if (event.case === "start") return event.value.pid;
    }
    throw new Error(`did not start: ${command}`);
  }

  /** Whether a process that was started here runs. */
  async runs(pid: number): Promise<boolean> {
    const { processes } = await this.#process.list({}, { signal: AbortSignal.timeout(patience(10_000)) });
    return processes.some((process) => process.pid === pid);
  }

  /** How far the machine's clock is ahead of the host's, less what it takes to ask. */
  async clockAheadMs(): Promise<number> {
    const { stdout } = await this.run("date +%s%3N");
    return Number(stdout) - Date.now();
  }

  /** Starts a shell with a terminal, known from then on by its tag. */
  async openShell(tag: string): Promise<void> {
    for await (const event of this.#start("sh", [], "root", { tag })) {
      if (event.case === "start") return;
    }
    throw new Error("the shell did not start");
  }

  /** Types a line into a shell and waits until `expected` shows, in what it prints or has just printed. */
  async type(tag: string, line: string, expected: string): Promise<void> {
    const process = { selector: { case: "tag", value: tag } } as const;
    const stop = AbortSignal.any([AbortSignal.timeout(patience(15_000)), this.#closed.signal]);
    const input = { input: { case: "pty", value: new TextEncoder().encode(`${line}\n`) } } as const;
    let shown = "";
    for await (const { event } of this.#process.connect({ process }, { signal: stop })) {
      if (event?.event.case === "start") await this.#process.sendInput({ process, input });
      if (event?.event.case !== "data" || event.event.value.output.case !== "pty") continue;
      shown += decode(event.event.value.output.value);
      if (shown.includes(expected)) return;
    }
    throw new Error(`the shell did not print ${expected} but: ${shown}`);
  }

  /** A connection that stays open; `ask` asks the agent by it, and throws when it is not there any more. */
  async connect(): Promise<{ ask(): Promise<void>; close(): void }> {
    const [host = "", port] = this.#address.split(":");
    const socket = connect(Number(port), host);
    await once(socket, "connect", { signal: AbortSignal.timeout(patience(10_000)) });
    return {
      async ask() {
        socket.write("GET /health HTTP/1.1\r\nHost: agent\r\n\r\n");
        const [answer] = await once(socket, "data", { signal: AbortSignal.timeout(patience(10_000)) });
        if (!String(answer).startsWith("HTTP/1.1 2")) throw new Error(`the agent answered ${answer}`);
      },
      close: () => socket.destroy(),
    };
  }

  /** Tells the machine who it is now, as the node does after each start. */
  async init(identity: { readonly hostname: string; readonly generationId: string }): Promise<void> {
    const entropy = Buffer.from(crypto.getRandomValues(new Uint8Array(32))).toString("base64");
    const facts = { ...identity, generation: 1, entropy, timestamp: new Date().toISOString() };
    await this.#ask("POST", "/init", { timeoutMs: 10_000, body: JSON.stringify(facts) });
  }

  /** Kills the process that holds the most memory, if one holds much. */
  freeMemory(): Promise<void> {
    return this.#ask("POST", "/memory", { timeoutMs: 10_000 });
  }

  /** Has the machine write all to its disk and keep it as it is. */
  freezeDisk(): Promise<void> {
    return this.#ask("POST", "/fsfreeze", { timeoutMs: 30_000 });
  }

  thawDisk(): Promise<void> {
    return this.#ask("POST", "/fsthaw", { timeoutMs: 30_000 });
  }

  /** By connections of its own: another machine may have had this address a moment ago. Throws on any answer but a good one. */
  async #ask(
    method: "GET" | "POST",
    path: string,
    { timeoutMs, body }: { readonly timeoutMs: number; readonly body?: string },
  ): Promise<void> {
    const [host = "", port] = this.#address.split(":");
    const headers = { ...(body !== undefined && { "content-type": "application/json" }) };
    const signal = AbortSignal.timeout(patience(timeoutMs));
    const asked = request({ host, port, method, path, headers, signal, agent: this.#connections });
    asked.end(body);
    const [answer] = (await once(asked, "response")) as [IncomingMessage];
    const said = await Array.fromAsync(answer, String);
    const status = answer.statusCode ?? 0;
    if (status < 200 || status > 299) throw new Error(`the agent answered ${status} to ${path}: ${said.join("")}`);
  }

  close(): void {
    this.#closed.abort();
    this.#connections.destroy();
  }

  async *#start(
    cmd: string,
    args: string[],
    user: string,
    { tag, timeoutMs, deadlineMs }: { tag?: string; timeoutMs?: number; deadlineMs?: number },
  ): AsyncGenerator<ProcessEvent["event"]> {
    const timeout = timeoutMs === undefined ? [] : [AbortSignal.timeout(timeoutMs)];
    const request = {
      process: { cmd, args, envs: {}, cwd: "/" },
      stdin: false,
      ...(tag !== undefined && { tag, pty: { size: { cols: 80, rows: 24 } } }),
    };
    const headers = {
      authorization: `Basic ${Buffer.from(`${user}:`).toString("base64")}`,
      // Not the client's own option, by which it would give up itself.
      ...(deadlineMs !== undefined && { "connect-timeout-ms": String(deadlineMs) }),
    };
    const signal = AbortSignal.any([this.#closed.signal, ...timeout]);
    for await (const { event } of this.#process.start(request, { headers, signal })) {
      if (event !== undefined) yield event.event;
    }
  }
}

/** Whether the processor is an emulated one: what is large is asked for in small there. */
export const IS_EMULATED = SLOWNESS > 1;

/** An emulated processor that asks more often has no time for what it waits for. */
const RETRY_MS = IS_EMULATED ? 400 : 20;

/** How long to wait for what is there within so many ms on a usual machine. */
export function patience(usualMs: number): number {
  return usualMs * SLOWNESS;
}

/** Repeats until it does not throw. Throws the last error after `timeoutMs`, on a usual machine. */
export async function eventually<T>(timeoutMs: number, check: () => Promise<T> | T): Promise<T> {
  const giveUpAtMs = performance.now() + patience(timeoutMs);
  for (;;) {
    try {
      return await check();
    } catch (error) {
      if (performance.now() > giveUpAtMs) throw error;
      await sleep(RETRY_MS);
    }
  }
}

function decode(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes);
}
