import { AenvError } from "#domain";
import type { Catalog, CatalogChange, CatalogRecord, ListOptions, RecordKind, WriteOptions } from "./catalog.ts";
import { Watchers } from "./watchers.ts";

interface Stored {
  readonly json: string;
  readonly revision: number;
}

/** A catalog that ends with the process: for tests. Values go through JSON as in the others. */
export class MemoryCatalog implements Catalog {
  readonly #kinds = new Map<string, Map<string, Stored>>();
  readonly #watchers = new Watchers();
  #revision = 0;
  #closed = false;

  async get<T>(kind: RecordKind<T>, key: string): Promise<CatalogRecord<T> | undefined> {
    const stored = this.#records(kind.name).get(key);
    return stored && { key, value: kind.decode(JSON.parse(stored.json)), revision: stored.revision };
  }

  async put<T>(kind: RecordKind<T>, key: string, value: T, options: WriteOptions = {}): Promise<number | undefined> {
    const records = this.#records(kind.name);
    if (!holds(records.get(key), options)) return undefined;
    this.#revision += 1;
    const stored = { json: JSON.stringify(value), revision: this.#revision };
    records.set(key, stored);
    this.#watchers.publish({ kind: kind.name, key, ...stored });
    return stored.revision;
  }

  async delete<T>(kind: RecordKind<T>, key: string, options: WriteOptions = {}): Promise<boolean> {
    const records = this.#records(kind.name);
    const stored = records.get(key);
    if (stored === undefined || !holds(stored, options)) return false;
    this.#revision += 1;
    records.delete(key);
    this.#watchers.publish({ kind: kind.name, key, revision: this.#revision, json: undefined });
    return true;
  }

  async list<T>(kind: RecordKind<T>, options: ListOptions = {}): Promise<CatalogRecord<T>[]> {
    const prefix = options.prefix ?? "";
    return [...this.#records(kind.name)]
      .filter(([key]) => key.startsWith(prefix))
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, { json, revision }]) => ({ key, value: kind.decode(JSON.parse(json)), revision }));
  }

  watch<T>(kind: RecordKind<T>, signal: AbortSignal): AsyncIterable<CatalogChange<T>> {
    return this.#watchers.watch(kind, signal);
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#watchers.close();
  }

  #records(kind: string): Map<string, Stored> {
    if (this.#closed) throw new AenvError("unavailable", "the catalog is closed");
    let records = this.#kinds.get(kind);
    if (records === undefined) {
      records = new Map();
      this.#kinds.set(kind, records);
    }
    return records;
  }
}

function holds(stored: Stored | undefined, options: WriteOptions): boolean {
  return options.ifRevision === undefined || options.ifRevision === (stored?.revision ?? 0);
}
