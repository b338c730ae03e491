import { mkdir, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { isSandboxId, type LogEntry, type LogQuery, type Metric, type MetricQuery, type SandboxId } from "#domain";
import { isMissing } from "#lib/files";
import { KeyedMutex } from "#lib/mutex";
import { entryLine, metricLine, parseEntry, parseMetric } from "./lines.ts";
import { type Ended, endedName, isExpired, matches, parseEndedName, sizeOf, thin } from "./policy.ts";
import { Ring } from "./ring.ts";

const NEVER_KEPT_MAX = 10_000;
/** How far a sandbox's clock may be ahead of ours. */
const AHEAD_MAX_MS = 3_600_000;

/** What is kept of one sandbox. */
interface Kept {
  readonly metrics: Ring;
  readonly logs: Ring;
  /** undefined: not read yet, or there is none. */
  latest: Metric | undefined;
}

/**
 * Metrics and logs of sandboxes, on disk: a bounded ring of each for every sandbox, moved aside at its end and removed by age
 * and by the size of all of them. Written without syncs: it outlives our processes, and a crash of the host costs some of it.
 */
export class Telemetry {
  readonly #live: string;
  readonly #over: string;
  readonly #nowMs: () => number;
  readonly #kept = new Map<SandboxId, Kept>();
  /** The one that ended first comes first. */
  readonly #ended: Map<SandboxId, Ended>;
  #endedBytes: number;
  /** Sandboxes that have ended before anything of them was kept: a late answer must not begin a folder for them. */
  readonly #neverKept = new Set<SandboxId>();
  /** One at a time works on a sandbox's files. */
  readonly #turns = new KeyedMutex();

  private constructor(dir: string, nowMs: () => number, ended: Map<SandboxId, Ended>) {
    this.#live = join(dir, "live");
    this.#over = join(dir, "ended");
    this.#nowMs = nowMs;
    this.#ended = ended;
    this.#endedBytes = [...ended.values()].reduce((sum, each) => sum + sizeOf(each), 0);
  }

  static async open(dir: string, nowMs: () => number): Promise<Telemetry> {
    for (const name of ["live", "ended"]) await mkdir(join(dir, name), { recursive: true, mode: 0o700 });
    const ended = (await readdir(join(dir, "ended")))
      .flatMap((name) => parseEndedName(name) ?? [])
      .sort((a, b) => a.endedAtMs - b.endedAtMs);
    return new Telemetry(dir, nowMs, new Map(ended.map((each) => [each.id, each])));
  }

  /** The id of the last log entry that is stored; 0: none is. */
  async lastEntryUs(id: SandboxId): Promise<number> {
    return this.#turns.run(id, () => this.#of(id).logs.lastId());
  }

  /** Stores what was read; entries with growing ids. Those that are stored already are left out, and those of a time that is
   *  far from having come: what comes later would count as stored. A sandbox that has ended takes no more. */
  async record(id: SandboxId, metric: Metric | undefined, entries: readonly LogEntry[]): Promise<void> {
    await this.#turns.run(id, async () => {
      if (this.#ended.has(id) || this.#neverKept.has(id)) return;
      const kept = this.#of(id);
      if (metric !== undefined) {
        // A clock that was set back must not make a line unfindable.
        const atMs = Math.max(metric.atMs, (await kept.metrics.lastId()) + 1);
        kept.latest = { ...metric, atMs };
        await kept.metrics.append([metricLine(kept.latest)]);
      }
      const lastUs = await kept.logs.lastId();
      const untilUs = (this.#nowMs() + AHEAD_MAX_MS) * 1000;
      await kept.logs.append(entries.filter(({ idUs }) => idUs > lastUs && idUs <= untilUs).map(entryLine));
    });
  }

  /** Oldest first; none: nothing is kept. */
  async metrics(id: SandboxId, { startMs = 0, endMs = Number.MAX_SAFE_INTEGER }: MetricQuery): Promise<Metric[]> {
    return this.#turns.run(id, async () => {
      const found: Metric[] = [];
      for await (const lines of this.#of(id).metrics.read(startMs, endMs))
        found.push(...lines.flatMap((line) => parseMetric(line) ?? []));
      const firstMs = startMs > 0 ? startMs : (found[0]?.atMs ?? 0);
      const lastMs = endMs < Number.MAX_SAFE_INTEGER ? endMs : (found.at(-1)?.atMs ?? 0);
      return thin(found, lastMs - firstMs);
    });
  }

  /** The newest reading. */
  async latest(id: SandboxId): Promise<Metric | undefined> {
    return this.#turns.run(id, async () => {
      const kept = this.#of(id);
      if (kept.latest !== undefined) return kept.latest;
      for await (const lines of kept.metrics.read(await kept.metrics.lastId(), Number.MAX_SAFE_INTEGER))
        kept.latest = lines.flatMap((line) => parseMetric(line) ?? []).at(-1) ?? kept.latest;
      return kept.latest;
    });
  }

  async logs(id: SandboxId, query: LogQuery): Promise<LogEntry[]> {
    return this.#turns.run(id, async () => {
      const found: LogEntry[] = [];
      const fromUs = (query.startMs ?? 0) * 1000;
      const toUs = query.endMs === undefined ? Number.MAX_SAFE_INTEGER : query.endMs * 1000 + 999;
      const backward = query.direction === "backward";
      for await (const lines of this.#of(id).logs.read(fromUs, toUs, { backward })) {
        for (const line of lines) {
          if (found.length >= query.limit) return found;
          const entry = parseEntry(line);
          if (entry !== undefined && matches(entry, query)) found.push(entry);
        }
      }
      return found;
    });
  }

  /** Of a sandbox that has ended something is kept. */
  hasEnded(id: SandboxId): boolean {
    return this.#ended.has(id);
  }

  /** Moves what is kept of a sandbox aside. Repeatable. */
  async end(id: SandboxId): Promise<void> {
    await this.#turns.run(id, async () => {
      if (this.#ended.has(id)) return;
      const { metrics, logs } = this.#of(id);
      const bytes = (await metrics.bytes()) + (await logs.bytes());
      const ended = { id, endedAtMs: this.#nowMs(), bytes };
      this.#kept.delete(id);
      try {
        await rename(join(this.#live, id), join(this.#over, endedName(ended)));
      } catch (error) {
        if (!isMissing(error)) throw error;
        this.#neverKept.add(id);
        const [oldest] = this.#neverKept;
        if (this.#neverKept.size > NEVER_KEPT_MAX && oldest !== undefined) this.#neverKept.delete(oldest);
        return;
      }
      this.#ended.set(id, ended);
      this.#endedBytes += sizeOf(ended);
    });
  }

  /** Ends all but these: what a crash has kept from being ended. */
  async retain(living: ReadonlySet<SandboxId>): Promise<void> {
    for (const id of await readdir(this.#live)) if (isSandboxId(id) && !living.has(id)) await this.end(id);
    await this.sweep();
  }

  /** Removes what is too old or too much. */
  async sweep(): Promise<void> {
    for (const ended of this.#ended.values()) {
      if (!isExpired(ended, this.#endedBytes, this.#nowMs())) return;
      await this.#turns.run(ended.id, async () => {
        if (!this.#ended.has(ended.id)) return;
        await rm(join(this.#over, endedName(ended)), { recursive: true, force: true });
        this.#ended.delete(ended.id);
        this.#endedBytes -= sizeOf(ended);
      });
    }
  }

  #of(id: SandboxId): Kept {
    const ended = this.#ended.get(id);
    if (ended !== undefined) return openIn(join(this.#over, endedName(ended)));
    const kept = this.#kept.get(id) ?? openIn(join(this.#live, id));
    this.#kept.set(id, kept);
    return kept;
  }
}

function openIn(dir: string): Kept {
  return { metrics: new Ring(dir, "metrics"), logs: new Ring(dir, "logs"), latest: undefined };
}
