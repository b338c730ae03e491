import { connect } from "node:net";

/**
 * The control socket every sandbox process of runsc listens on: one JSON object asks, one answers, and the connection is
 * its caller's alone. Without a runsc process in between a call takes under a millisecond.
 */
export class ControlSocket {
  readonly #path: string;

  constructor(path: string) {
    this.#path = path;
  }

  /** Stops all tasks of the guest. Counts: two pauses need two resumes. */
  async pause(): Promise<void> {
    await this.#call("containerManager.Pause", {});
  }

  /** Preconditions: paused. The sandbox dies of a resume it was not paused for. */
  async resume(): Promise<void> {
    await this.#call("containerManager.Resume", {});
  }

  /** Returns when the garbage of the sandbox's own heap has been collected. By itself it does that at the latest two minutes after the last
   *  time. It begins to give up pages of files that nobody uses, too. */
  async collectGarbage(): Promise<void> {
    await this.#call("Usage.Reduce", { wait: false, do_not_gc: false });
  }

  /** True when the guest's first process has been started and has not ended. Throws when nobody answers. */
  async isRunning(id: string): Promise<boolean> {
    return (await this.#call("containerManager.ContainerRuntimeState", id)) === RUNTIME_STATE_RUNNING;
  }

  /** True when all tasks are stopped from outside. The only thing the sandbox tells of it are its goroutines' stacks. */
  async isPaused(): Promise<boolean> {
    return allTasksStopped(String(await this.#call("debug.Stacks", {})));
  }

  #call(method: string, arg: unknown): Promise<unknown> {
    const answer = Promise.withResolvers<unknown>();
    const socket = connect(this.#path);
    const timer = setTimeout(() => socket.destroy(new Error(`no answer within ${DEADLINE_MS} ms`)), DEADLINE_MS);
    let text = "";
    socket.setEncoding("utf8");
    socket.on("connect", () => socket.write(JSON.stringify({ method, arg })));
    socket.on("data", (chunk: string) => {
      text += chunk;
      // The answer has no length and no end mark: it is complete when it can be read.
      const value = parseOrWait(text);
      if (value === undefined && text.length <= MAX_ANSWER_CHARS) return;
      if (value?.success === true) answer.resolve(value.result);
      else answer.reject(new Error(`sandbox refused ${method}: ${value?.err ?? "its answer is too long"}`));
      socket.destroy();
    });
    const failed = (cause?: unknown): void =>
      answer.reject(new Error(`sandbox did not answer ${method} at ${this.#path}`, { cause }));
    socket.on("error", failed);
    socket.on("close", () => {
      clearTimeout(timer);
      failed();
    });
    return answer.promise;
  }
}

const DEADLINE_MS = 10_000;
const MAX_ANSWER_CHARS = 64 * 1024 * 1024;
const RUNTIME_STATE_RUNNING = 2;

interface Answer {
  readonly success: boolean;
  readonly err: string;
  readonly result: unknown;
}

function parseOrWait(text: string): Answer | undefined {
  if (!text.trimEnd().endsWith("}")) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Each task of the guest is a goroutine in `Task.run`; one that may not go on waits in `Task.doStop`. */
export function allTasksStopped(stacks: string): boolean {
  const tasks = stacks.split("\n\n").filter((stack) => stack.includes("kernel.(*Task).run("));
  return tasks.length > 0 && tasks.every((stack) => stack.includes(".doStop("));
}
