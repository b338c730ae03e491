/**
 * The catalog: the small records that change (names, tags, builds, sandboxes, routes). Everything else is immutable bytes
 * elsewhere. A record is a JSON value under a kind and a key; each write gives it a new revision, greater than every
 * revision before it in the whole catalog, so a revision is never met twice, not even after a delete.
 *
 * Writers that may meet others name the revision they read (`ifRevision`) and, when it has moved on, read and decide
 * again. All methods are safe to call concurrently; a write that has returned is seen by every later read.
 *
 * Errors of all methods: `exhausted` (disk full), `unavailable` (store busy or closed).
 */
export interface Catalog {
  /** undefined: there is none. */
  get<T>(kind: RecordKind<T>, key: string): Promise<CatalogRecord<T> | undefined>;

  /** Writes and returns the new revision; undefined, with nothing written, when `ifRevision` does not hold. */
  put<T>(kind: RecordKind<T>, key: string, value: T, options?: WriteOptions): Promise<number | undefined>;

  /** Removes and returns true; false when there is none or `ifRevision` does not hold. */
  delete<T>(kind: RecordKind<T>, key: string, options?: WriteOptions): Promise<boolean>;

  /** Records of a kind in the order of their keys. */
  list<T>(kind: RecordKind<T>, options?: ListOptions): Promise<CatalogRecord<T>[]>;

  /**
   * Changes of a kind from this call on, in order, until the signal or `close` ends the stream. Call it before `list` and
   * no change is missed. A reader more than `WATCH_BACKLOG` changes behind gets `unavailable` and starts over.
   */
  watch<T>(kind: RecordKind<T>, signal: AbortSignal): AsyncIterable<CatalogChange<T>>;

  /** Ends all watches and lets go of the store. Repeatable. */
  close(): Promise<void>;
}

/** A kind of record: its name in the store, and how its JSON becomes a value. */
export interface RecordKind<T> {
  readonly name: string;
  /** Throws when the JSON is no such value. */
  readonly decode: (json: unknown) => T;
}

export interface CatalogRecord<T> {
  readonly key: string;
  readonly value: T;
  readonly revision: number;
}

export type CatalogChange<T> =
  | { readonly type: "put"; readonly record: CatalogRecord<T> }
  | { readonly type: "delete"; readonly key: string; readonly revision: number };

export interface WriteOptions {
  /** Write only if the record is at this revision; 0: only if there is none. Absent: in any case. */
  readonly ifRevision?: number;
  /** On stable storage before the call returns. Without it a power cut may lose the last writes, a crash of ours does not. */
  readonly durable?: boolean;
}

export interface ListOptions {
  /** Only keys that start with it. */
  readonly prefix?: string;
}

export const WATCH_BACKLOG = 10_000;

/** A kind whose values are objects that have these fields. */
export function recordKind<T extends object>(name: string, required: readonly (keyof T & string)[]): RecordKind<T> {
  return {
    name,
    decode(json) {
      if (typeof json !== "object" || json === null) throw new Error(`a stored ${name} record is not an object`);
      for (const field of required) {
        if (!(field in json)) throw new Error(`a stored ${name} record has no field ${field}`);
      }
      return json as T;
    },
  };
}

const UPDATE_TRIES = 100;

/**
 * Reads, changes and writes one record, again until no other writer came between. `change` may run several times; what
 * it throws ends the update; undefined from it means "leave it". Returns the value as it then is; undefined: no record.
 */
export async function updateRecord<T>(
  catalog: Catalog,
  kind: RecordKind<T>,
  key: string,
  change: (value: T) => T | undefined,
  options: Pick<WriteOptions, "durable"> = {},
): Promise<T | undefined> {
  for (let tries = 0; tries < UPDATE_TRIES; tries += 1) {
    const record = await catalog.get(kind, key);
    if (record === undefined) return undefined;
    const next = change(record.value);
    if (next === undefined) return record.value;
    const revision = await catalog.put(kind, key, next, { ...options, ifRevision: record.revision });
    if (revision !== undefined) return next;
  }
  throw new Error(`${kind.name} record ${key} was changed by others ${UPDATE_TRIES} times in a row`);
}
