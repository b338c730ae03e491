import { AenvError } from "#domain";
import { type CatalogChange, type RecordKind, WATCH_BACKLOG } from "./catalog.ts";

/** A change as the stores hold it: JSON text, no types. */
export interface RawChange {
  readonly kind: string;
  readonly key: string;
  readonly revision: number;
  /** undefined: deleted. */
  readonly json: string | undefined;
}

interface Watcher {
  readonly kind: string;
  readonly queue: RawChange[];
  overflowed: boolean;
  wake: () => void;
}

/** The readers of one catalog's changes, each with a bounded queue of its own. */
export class Watchers {
  readonly #watchers = new Set<Watcher>();
  readonly #closing = new AbortController();

  publish(change: RawChange): void {
    for (const watcher of this.#watchers) {
      if (watcher.kind !== change.kind) continue;
      if (watcher.queue.length >= WATCH_BACKLOG) watcher.overflowed = true;
      else watcher.queue.push(change);
      watcher.wake();
    }
  }

  /** Listens from now on, not from the first `next()` on. */
  watch<T>(kind: RecordKind<T>, signal: AbortSignal): AsyncIterable<CatalogChange<T>> {
    const watcher: Watcher = { kind: kind.name, queue: [], overflowed: false, wake: () => {} };
    const end = AbortSignal.any([signal, this.#closing.signal]);
    this.#watchers.add(watcher);
    end.addEventListener("abort", () => this.#watchers.delete(watcher));
    if (end.aborted) this.#watchers.delete(watcher);
    return this.#read(watcher, kind, end);
  }

  close(): void {
    this.#closing.abort();
  }

  async *#read<T>(watcher: Watcher, kind: RecordKind<T>, end: AbortSignal): AsyncGenerator<CatalogChange<T>> {
    const wake = () => watcher.wake();
    end.addEventListener("abort", wake);
    try {
      while (!end.aborted) {
        const change = watcher.queue.shift();
        if (change !== undefined) yield typed(kind, change);
        else if (watcher.overflowed) throw fellBehind(kind.name);
        else await new Promise<void>((resolve) => (watcher.wake = resolve));
      }
    } finally {
      end.removeEventListener("abort", wake);
      this.#watchers.delete(watcher);
    }
  }
}

function typed<T>(kind: RecordKind<T>, change: RawChange): CatalogChange<T> {
  const { key, revision, json } = change;
  if (json === undefined) return { type: "delete", key, revision };
  return { type: "put", record: { key, revision, value: kind.decode(JSON.parse(json)) } };
}

function fellBehind(kind: string): AenvError {
  return new AenvError("unavailable", `a reader of ${kind} records is more than ${WATCH_BACKLOG} changes behind`, {
    hint: "watch and list again",
  });
}
