import { chmodSync, closeSync, openSync } from "node:fs";
import { DatabaseSync, type StatementSync } from "node:sqlite";
import { AenvError } from "#domain";
import type { Catalog, CatalogChange, CatalogRecord, ListOptions, RecordKind, WriteOptions } from "./catalog.ts";
import { Watchers } from "./watchers.ts";

/** What `user_version` of the file says. Raised with each change of the tables; older files are brought up on open. */
export const CATALOG_FORMAT = 1;

const TABLES = `
  CREATE TABLE records (
    kind TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, revision INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
  ) WITHOUT ROWID, STRICT;
  CREATE TABLE counter (revision INTEGER NOT NULL) STRICT;
  INSERT INTO counter VALUES (0);
  PRAGMA user_version = ${CATALOG_FORMAT};
`;

/**
 * One machine's catalog in one SQLite file (write-ahead log). One process at a time writes it and only its changes are
 * watched. Calls run on the caller's thread: a plain write takes tens of microseconds, a durable one waits for the disk.
 */
export class SqliteCatalog implements Catalog {
  readonly #db: DatabaseSync;
  readonly #path: string;
  readonly #watchers = new Watchers();
  readonly #get: StatementSync;
  readonly #put: StatementSync;
  readonly #delete: StatementSync;
  readonly #list: StatementSync;
  readonly #nextRevision: StatementSync;

  /** Opens or makes the file. Errors: `unavailable` (cannot be opened), `invalid` (written by a newer version). */
  constructor(path: string) {
    this.#path = path;
    this.#db = open(path);
    this.#get = this.#db.prepare("SELECT value, revision FROM records WHERE kind = ? AND key = ?");
    this.#put = this.#db.prepare("INSERT OR REPLACE INTO records (kind, key, value, revision) VALUES (?, ?, ?, ?)");
    this.#delete = this.#db.prepare("DELETE FROM records WHERE kind = ? AND key = ?");
    this.#list = this.#db.prepare(
      "SELECT key, value, revision FROM records WHERE kind = ? AND key >= ? AND key < ? ORDER BY key",
    );
    this.#nextRevision = this.#db.prepare("UPDATE counter SET revision = revision + 1 RETURNING revision");
  }

  async get<T>(kind: RecordKind<T>, key: string): Promise<CatalogRecord<T> | undefined> {
    const row = this.#guard(() => this.#get.get(kind.name, key));
    return row && record(kind, key, row);
  }

  async put<T>(kind: RecordKind<T>, key: string, value: T, options: WriteOptions = {}): Promise<number | undefined> {
    const json = JSON.stringify(value);
    const revision = this.#transaction(options.durable === true, () => {
      if (!this.#holds(kind.name, key, options)) return undefined;
      const next = Number(this.#nextRevision.get()?.revision);
      this.#put.run(kind.name, key, json, next);
      return next;
    });
    if (revision !== undefined) this.#watchers.publish({ kind: kind.name, key, revision, json });
    return revision;
  }

  async delete<T>(kind: RecordKind<T>, key: string, options: WriteOptions = {}): Promise<boolean> {
    const revision = this.#transaction(options.durable === true, () => {
      if (!this.#holds(kind.name, key, options)) return undefined;
      if (Number(this.#delete.run(kind.name, key).changes) === 0) return undefined;
      return Number(this.#nextRevision.get()?.revision);
    });
    if (revision === undefined) return false;
    this.#watchers.publish({ kind: kind.name, key, revision, json: undefined });
    return true;
  }

  async list<T>(kind: RecordKind<T>, options: ListOptions = {}): Promise<CatalogRecord<T>[]> {
    const prefix = options.prefix ?? "";
    const rows = this.#guard(() => this.#list.all(kind.name, prefix, `${prefix}\u{10ffff}`));
    return rows.map((row) => record(kind, String(row.key), row));
  }

  watch<T>(kind: RecordKind<T>, signal: AbortSignal): AsyncIterable<CatalogChange<T>> {
    return this.#watchers.watch(kind, signal);
  }

  async close(): Promise<void> {
    this.#watchers.close();
    if (this.#db.isOpen) this.#db.close();
  }

  #holds(kind: string, key: string, options: WriteOptions): boolean {
    if (options.ifRevision === undefined) return true;
    return options.ifRevision === Number(this.#get.get(kind, key)?.revision ?? 0);
  }

  #transaction<R>(durable: boolean, work: () => R): R {
    return this.#guard(() => {
      // In WAL mode FULL means one sync of the log at commit. The setting cannot change inside a transaction.
      if (durable) this.#db.exec("PRAGMA synchronous = FULL");
      try {
        this.#db.exec("BEGIN IMMEDIATE");
        const result = work();
        this.#db.exec("COMMIT");
        return result;
      } catch (error) {
        if (this.#db.isOpen && this.#db.isTransaction) this.#db.exec("ROLLBACK");
        throw error;
      } finally {
        if (durable && this.#db.isOpen) this.#db.exec("PRAGMA synchronous = NORMAL");
      }
    });
  }

  #guard<R>(work: () => R): R {
    if (!this.#db.isOpen) throw new AenvError("unavailable", "the catalog is closed");
    try {
      return work();
    } catch (error) {
      throw explain(error, this.#path);
    }
  }
}

function open(path: string): DatabaseSync {
  let db: DatabaseSync | undefined;
  try {
    // Records hold tokens. SQLite gives the files beside it the mode this one has when they are made.
    closeSync(openSync(path, "a", 0o600));
    chmodSync(path, 0o600);
    db = new DatabaseSync(path, { timeout: 5000 });
    db.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL");
    const format = Number(db.prepare("PRAGMA user_version").get()?.user_version);
    if (format > CATALOG_FORMAT) {
      throw new AenvError(
        "invalid",
        `${path} has catalog format ${format}; this version reads up to ${CATALOG_FORMAT}`,
        {
          hint: "start the newer version of the server, or another data directory",
        },
      );
    }
    if (format === 0) db.exec(`BEGIN IMMEDIATE; ${TABLES} COMMIT`);
    return db;
  } catch (error) {
    if (db?.isOpen) db.close();
    if (error instanceof AenvError) throw error;
    throw new AenvError("unavailable", `the catalog ${path} cannot be opened`, { cause: error });
  }
}

function record<T>(kind: RecordKind<T>, key: string, row: Record<string, unknown>): CatalogRecord<T> {
  return { key, value: kind.decode(JSON.parse(String(row.value))), revision: Number(row.revision) };
}

const SQLITE_BUSY = 5;
const SQLITE_FULL = 13;

function explain(error: unknown, path: string): unknown {
  const code = error instanceof Error && "errcode" in error ? Number(error.errcode) & 0xff : 0;
  if (code === SQLITE_FULL) {
    return new AenvError("exhausted", `the disk of ${path} is full`, { cause: error, hint: "free some space" });
  }
  if (code === SQLITE_BUSY) {
    return new AenvError("unavailable", `${path} is locked by another process`, { cause: error });
  }
  return error;
}
