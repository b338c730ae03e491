import { chmod, mkdir, readFile, realpath } from "node:fs/promises";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { isMissing, writeFileAtomic } from "#lib/files";
import { CliError, EXIT } from "./errors.ts";
import type { CliIo } from "./io.ts";

export const DEFAULT_URL = "http://127.0.0.1:8000";

export interface Credentials {
  readonly url?: string;
  readonly key?: string;
}

export function credentialsPath(env: CliIo["env"]): string {
  // The XDG rules: an empty or relative value counts as unset.
  const configured = env.XDG_CONFIG_HOME;
  const base = configured?.startsWith("/") ? configured : join(env.HOME || homedir(), ".config");
  return join(base, "aenv", "credentials");
}

/** What `aenv auth` saved; empty when nothing was. */
export async function readCredentials(path: string): Promise<Credentials> {
  let text: string;
  try {
    text = await readFile(path, "utf8");
  } catch (error) {
    if (isMissing(error)) return {};
    throw new CliError(EXIT.failure, `cannot read ${path}: ${(error as Error).message}`, { cause: error });
  }
  try {
    const { url, key } = JSON.parse(text) as { url?: unknown; key?: unknown };
    return { ...(typeof url === "string" ? { url } : {}), ...(typeof key === "string" ? { key } : {}) };
  } catch (error) {
    throw new CliError(EXIT.failure, `${path} is damaged`, { hint: "run `aenv auth` to write it anew", cause: error });
  }
}

/** Replaces the file as a whole; nobody but its owner can read it at any moment. A symbolic link is followed. */
export async function saveCredentials(path: string, credentials: Required<Credentials>): Promise<void> {
  try {
    await mkdir(dirname(path), { recursive: true, mode: 0o700 });
    const target = await realpath(path).catch((error) => {
      if (isMissing(error)) return path;
      throw error;
    });
    await writeFileAtomic(target, `${JSON.stringify(credentials, undefined, 2)}\n`, { mode: 0o600, durable: true });
    // A strict umask may have taken away the owner's own bits.
    await chmod(target, 0o600);
  } catch (error) {
    throw new CliError(EXIT.failure, `cannot write ${path}: ${(error as Error).message}`, {
      hint: "set XDG_CONFIG_HOME to a writable folder, or use AENV_URL and AENV_API_KEY instead",
      cause: error,
    });
  }
}

/** Throws CliError (usage) for what cannot be sent as a header. */
export function parseKey(text: string): string {
  const key = text.trim();
  if (key === "") throw new CliError(EXIT.usage, "the API key is empty");
  if (!/^[\x21-\x7e]+$/.test(key)) {
    throw new CliError(
      EXIT.usage,
      "the API key holds characters that no key has (spaces, control or non-ASCII characters)",
    );
  }
  return key;
}
