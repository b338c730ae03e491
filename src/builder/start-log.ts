import type { StartEvent } from "#domain";
import type { BuildLog } from "./log.ts";

/** Lines of a start command that are kept; the log has room for these and what comes after. */
const OUTPUT_LINES_MAX = 300;

/** Writes what happens while a template is started to the build's log, in E2B's words, which its clients look for. */
export class StartLog {
  readonly #log: BuildLog;
  #outputLines = 0;
  #writing: Promise<void> = Promise.resolve();
  #failure: { readonly error: unknown } | undefined;

  constructor(log: BuildLog) {
    this.#log = log;
  }

  add(event: StartEvent): void {
    const message = this.#messageOf(event);
    if (message !== undefined) this.#writing = this.#writing.then(() => this.#write(message));
  }

  /** Returns when nothing is written any more; never throws. */
  async settled(): Promise<void> {
    await this.#writing;
  }

  /** Throws what writing threw first. */
  throwIfFailed(): void {
    if (this.#failure !== undefined) throw this.#failure.error;
  }

  async #write(message: string): Promise<void> {
    try {
      await this.#log.add("info", message, "finalize");
    } catch (error) {
      // Nobody waits for it yet: the template goes on starting meanwhile.
      this.#failure ??= { error };
    }
  }

  #messageOf(event: StartEvent): string | undefined {
    switch (event.kind) {
      case "starting":
        return "Running start command";
      case "waiting":
        return `Waiting for template to be ready: ${event.readyCmd}`;
      case "ready":
        return "Template is ready";
      case "output":
        this.#outputLines += 1;
        if (this.#outputLines <= OUTPUT_LINES_MAX) return `[start] [${event.stream}]: ${event.line}`;
        return this.#outputLines === OUTPUT_LINES_MAX + 1 ? "[start] more output is not shown" : undefined;
    }
  }
}
