import { CliError, EXIT } from "../errors.ts";
import { printable } from "../output.ts";
import { baseName, join, ofText, parentOf, shown } from "./names.ts";

/** One side of a copy, as a word names it. Paths are bytes. */
export type Place =
  | { readonly kind: "stream" }
  | { readonly kind: "local"; readonly path: string }
  | { readonly kind: "sandbox"; readonly id: string; readonly path: string };

/** `ID:PATH`, `-`, or a path of this machine; one with a colon in its first part is written `./a:b`. */
export function parsePlace(word: string): Place {
  if (word === "-") return { kind: "stream" };
  // What stands for bytes that are no text: they would become another name.
  if (word.includes("\ufffd")) {
    throw new CliError(EXIT.usage, `'${printable(word)}' is not UTF-8`, {
      hint: "such names are copied with the folder that they are in",
    });
  }
  const remote = /^([A-Za-z0-9_-]+):(.*)$/s.exec(word);
  if (remote?.[1] !== undefined) return { kind: "sandbox", id: remote[1], path: ofText(remote[2] ?? "") };
  if (word === "" || word.startsWith(":")) throw new CliError(EXIT.usage, `'${word}' is no place to copy from or to`);
  return { kind: "local", path: ofText(word) };
}

export interface Source {
  readonly kind: "file" | "folder";
  /** As it was typed. */
  readonly path: string;
}

export type Existing = "nothing" | "file" | "folder";

/** Where a copy goes: to `name` in `folder`. The name "." stands for the folder itself. */
export interface Landing {
  readonly folder: string;
  readonly name: string;
}

/**
 * docker cp's rules. A file goes to the path given, or below its own name into a folder that is there. A folder goes below
 * its own name into a folder that is there, but `SOURCE/.` puts what it holds there; where nothing is, the copy gets the
 * target's name. Throws CliError (usage) for what cannot be.
 */
export function landingOf(source: Source, target: string, existing: Existing): Landing {
  const inside = { folder: target === "" ? "." : target, name: baseName(source.path) || "." };
  const itself = { folder: parentOf(target), name: baseName(target) };
  const asFolder = /(^|\/)\.?$/.test(target);
  if (source.kind === "folder") {
    if (existing === "file") {
      throw new CliError(EXIT.usage, `${shown(target)} is a file, and ${shown(source.path)} is a folder`);
    }
    if (existing === "nothing") return itself;
    return /(^|\/)\.$/.test(source.path) ? { ...inside, name: "." } : inside;
  }
  if (existing === "folder") return inside;
  if (existing === "nothing" && asFolder) {
    throw new CliError(EXIT.notFound, `there is no folder ${shown(target)}`, {
      hint: "make it first, or leave the last slash out to give the copy that name",
    });
  }
  if (asFolder) throw new CliError(EXIT.usage, `${shown(target)} is a file, not a folder`);
  return itself;
}

export function landingPath({ folder, name }: Landing): string {
  return name === "." ? folder : join(folder, name);
}
