import type { Templates } from "#catalog";
import type { Build, BuildLogEntry } from "#domain";

const ENTRIES_MAX = 500;
const MESSAGE_MAX = 4_000;

/** The log of one build under way: kept here, written through to the catalog with each entry. Bounded. */
export class BuildLog {
  readonly #templates: Templates;
  readonly #build: Build;
  readonly #nowMs: () => number;
  readonly #entries: BuildLogEntry[] = [];

  constructor(templates: Templates, build: Build, nowMs: () => number) {
    this.#templates = templates;
    this.#build = build;
    this.#nowMs = nowMs;
  }

  get entries(): readonly BuildLogEntry[] {
    return this.#entries;
  }

  async add(level: BuildLogEntry["level"], message: string, step?: string): Promise<void> {
    if (this.#entries.length >= ENTRIES_MAX) return;
    const entry = { atMs: this.#nowMs(), level, message: message.slice(0, MESSAGE_MAX) };
    this.#entries.push(step === undefined ? entry : { ...entry, step });
    await this.#templates.putLog(this.#build, this.#entries);
  }
}
