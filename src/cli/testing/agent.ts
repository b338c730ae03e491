import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import type { ConnectRouter } from "@connectrpc/connect";
import { Code, ConnectError } from "@connectrpc/connect";
import { Process } from "#gen/process/process_pb.js";

/** One event of a process, in the shape the generated service takes. */
type Event =
  | { case: "start"; value: { pid: number } }
  | { case: "data"; value: { output: { case: "stdout" | "stderr" | "pty"; value: Uint8Array } } }
  | { case: "end"; value: { exitCode: number; exited: boolean; status: string; error?: string } };

const MAX_QUEUED = 64;

/** Who watches a process: events wait here, and the process waits when there are many. */
class Watcher {
  readonly #events: Event[] = [];
  #wake = Promise.withResolvers<void>();
  #taken = Promise.withResolvers<void>();
  broken = false;

  async push(event: Event): Promise<void> {
    this.#events.push(event);
    this.#wake.resolve();
    while (this.#events.length > MAX_QUEUED && !this.broken) {
      this.#taken = Promise.withResolvers();
      await this.#taken.promise;
    }
  }

  break(): void {
    this.broken = true;
    this.#wake.resolve();
    this.#taken.resolve();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Event, void> {
    for (;;) {
      const event = this.#events.shift();
      this.#taken.resolve();
      if (event !== undefined) {
        yield event;
        if (event.case === "end") return;
      } else {
        if (this.broken) throw new ConnectError("cut by the test", Code.Unavailable);
        this.#wake = Promise.withResolvers();
        await this.#wake.promise;
      }
    }
  }
}

interface Running {
  readonly pid: number;
  readonly tag: string | undefined;
  readonly config: { cmd: string; args: string[]; envs: Record<string, string> };
  readonly watchers: Set<Watcher>;
  readonly child?: ChildProcess;
  /** What was typed into a terminal, and the sizes it got. */
  typed: string;
  readonly sizes: string[];
  /** What it has said, and how much of that is not kept any more, from its beginning on. */
  kept: Buffer;
  forgotten: number;
}

/**
 * The agent's process service as the CLI sees it: commands are real child processes of the test, terminals are a scripted
 * shell that prompts, echoes, says `[COLSxROWS]` when resized, and ends on `exit N`.
 */
export class AgentDouble {
  readonly running = new Map<number, Running>();
  /** Of the requests that came, newest last. */
  readonly headers: Headers[] = [];
  /** What this machine lacks although the test's has it. */
  missing = new Set<string>();
  inputError: ConnectError | undefined;
  /** How long input is on its way. */
  inputDelayMs = 0;
  /** Whether it keeps output for who attaches, as agents do since they say where a stream begins. */
  keeps = true;
  #nextPid = 1000;

  readonly routes = (router: ConnectRouter): void => {
    const agent = this;
    router.service(Process, {
      list: () => ({
        processes: [...agent.running.values()].map(({ pid, tag, config }) => ({
          pid,
          config,
          ...(tag === undefined ? {} : { tag }),
        })),
      }),
      async *start(request, context) {
        agent.headers.push(context.requestHeader);
        const config = request.process;
        if (config === undefined) throw new ConnectError("no process", Code.InvalidArgument);
        if (agent.missing.has(config.cmd)) throw new ConnectError(`command '${config.cmd}' not found`, Code.NotFound);
        const plain = { cmd: config.cmd, args: config.args, envs: config.envs };
        const process =
          request.pty === undefined
            ? await agent.#spawn(plain, config.cwd, request.stdin ?? true)
            : agent.#shell(plain, request.tag, `${request.pty.size?.cols}x${request.pty.size?.rows}`);
        yield* agent.#watch(process);
      },
      async *connect(request, context) {
        const process = agent.#find(request.process);
        const asked = Number(context.requestHeader.get("aenv-output-offset") ?? 0);
        const from = Math.min(Math.max(asked, process.forgotten), process.kept.length);
        if (agent.keeps) context.responseHeader.set("aenv-output-offset", String(from));
        yield* agent.#watch(process, agent.keeps ? process.kept.subarray(from) : Buffer.alloc(0));
      },
      async sendInput(request) {
        if (agent.inputError !== undefined) throw agent.inputError;
        if (agent.inputDelayMs > 0) await sleep(agent.inputDelayMs);
        const process = agent.#find(request.process);
        const input = request.input?.input;
        if (input?.case === "pty") agent.#type(process, Buffer.from(input.value).toString("utf8"));
        else if (input?.case === "stdin") await feed(process, input.value);
        return {};
      },
      closeStdin(request) {
        agent.#find(request.process).child?.stdin?.end();
        return {};
      },
      update(request) {
        const { size } = request.pty ?? {};
        const process = agent.#find(request.process);
        if (process.child !== undefined) throw new ConnectError("has no terminal to resize", Code.InvalidArgument);
        process.sizes.push(`${size?.cols}x${size?.rows}`);
        agent.#print(process, `[${process.sizes.at(-1)}]`);
        return {};
      },
      sendSignal(request) {
        agent.#find(request.process).child?.kill(request.signal === 9 ? "SIGKILL" : "SIGTERM");
        return {};
      },
    });
  };

  /** Breaks every open stream, as a lost connection does; the processes go on. */
  cut(): void {
    for (const { watchers } of this.running.values()) for (const watcher of watchers) watcher.break();
  }

  /** Ends the terminals. */
  end(exitCode: number): void {
    for (const process of this.running.values()) {
      if (process.child !== undefined) continue;
      this.running.delete(process.pid);
      void publish(process, { case: "end", value: { exitCode, exited: true, status: `exit status ${exitCode}` } });
    }
  }

  /** Lets the terminals say something. */
  say(text: string): void {
    for (const process of this.running.values()) if (process.child === undefined) this.#print(process, text);
  }

  close(): void {
    this.cut();
    for (const { child } of this.running.values()) child?.kill("SIGKILL");
  }

  async #spawn(config: Running["config"], cwd: string | undefined, stdin: boolean): Promise<Running> {
    const child = spawn(config.cmd, config.args, {
      stdio: [stdin ? "pipe" : "ignore", "pipe", "pipe"],
      env: { PATH: "/usr/bin:/bin", ...config.envs },
      ...(cwd === undefined ? {} : { cwd }),
    });
    const watchers = new Set<Watcher>();
    const process: Running = {
      pid: this.#nextPid++,
      tag: undefined,
      config,
      watchers,
      child,
      typed: "",
      sizes: [],
      kept: Buffer.alloc(0),
      forgotten: 0,
    };
    child.stdin?.on("error", () => {});
    try {
      await once(child, "spawn");
    } catch (error) {
      const code = (error as { code?: string }).code === "EACCES" ? Code.PermissionDenied : Code.NotFound;
      throw new ConnectError(`command '${config.cmd}' not found`, code);
    }
    this.running.set(process.pid, process);
    void this.#pump(process, child);
    return process;
  }

  async #pump(process: Running, child: ChildProcess): Promise<void> {
    const ended = once(child, "exit") as Promise<[number | null, string | null]>;
    const drain = async (name: "stdout" | "stderr"): Promise<void> => {
      for await (const value of child[name] ?? []) {
        process.kept = Buffer.concat([process.kept, value]);
        await publish(process, { case: "data", value: { output: { case: name, value } } });
      }
    };
    await Promise.all([drain("stdout"), drain("stderr")]);
    const [code, signal] = await ended;
    const words = SIGNAL_WORDS[signal ?? ""];
    const value =
      code === null
        ? { exitCode: -1, exited: false, status: `signal: ${words}` }
        : { exitCode: code, exited: true, status: `exit status ${code}` };
    this.running.delete(process.pid);
    await publish(process, { case: "end", value });
  }

  #shell(config: Running["config"], tag: string | undefined, size: string): Running {
    const process: Running = {
      pid: this.#nextPid++,
      tag,
      config,
      watchers: new Set(),
      typed: "",
      sizes: [size],
      kept: Buffer.alloc(0),
      forgotten: 0,
    };
    this.running.set(process.pid, process);
    queueMicrotask(() => this.#print(process, "ready$ "));
    return process;
  }

  #type(process: Running, text: string): void {
    process.typed += text;
    this.#print(process, text.replaceAll("\r", "\r\nready$ "));
    const code = /(?:^|\r)exit (\d+)\r/.exec(process.typed)?.[1];
    if (code === undefined) return;
    this.running.delete(process.pid);
    const end = { exitCode: Number(code), exited: true, status: `exit status ${code}` };
    void publish(process, { case: "end", value: end });
  }

  #print(process: Running, text: string): void {
    process.kept = Buffer.concat([process.kept, Buffer.from(text)]);
    void publish(process, { case: "data", value: { output: { case: "pty", value: Buffer.from(text) } } });
  }

  async *#watch(process: Running, replay: Buffer = Buffer.alloc(0)) {
    const watcher = new Watcher();
    process.watchers.add(watcher);
    try {
      yield { event: { event: { case: "start" as const, value: { pid: process.pid } } } };
      if (replay.length > 0) {
        const output = { case: process.child === undefined ? ("pty" as const) : ("stdout" as const), value: replay };
        yield { event: { event: { case: "data" as const, value: { output } } } };
      }
      for await (const event of watcher) yield { event: { event } };
    } finally {
      process.watchers.delete(watcher);
      watcher.break();
    }
  }

  #find(selector: { selector: { case?: string | undefined; value?: unknown } } | undefined): Running {
    const found = this.running.get(Number(selector?.selector.value));
    if (found === undefined) throw new ConnectError("process not found: it has ended", Code.NotFound);
    return found;
  }
}

const SIGNAL_WORDS: Readonly<Record<string, string>> = {
  SIGKILL: "killed",
  SIGTERM: "terminated",
  SIGSEGV: "segmentation fault (core dumped)",
  SIGXCPU: "CPU time limit exceeded",
  SIGSYS: "bad system call",
};

async function publish(process: Running, event: Event): Promise<void> {
  await Promise.all([...process.watchers].map((watcher) => watcher.push(event)));
}

/** Answered when the pipe took it, as the real agent does. */
async function feed(process: Running, bytes: Uint8Array): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    process.child?.stdin?.write(bytes, (error) =>
      error ? reject(new ConnectError("does not read its input any more", Code.FailedPrecondition)) : resolve(),
    );
  });
}
