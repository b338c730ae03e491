import { printable } from "../output.ts";

/** File names are bytes; here they are strings of one character a byte ("latin1"). */
export function toBytes(name: string): Buffer {
  return Buffer.from(name, "latin1");
}

/** Of a word as people type it. */
export function ofText(text: string): string {
  return Buffer.from(text, "utf8").toString("latin1");
}

/** For the wire and for people. */
export function toText(name: string): string {
  return toBytes(name).toString("utf8");
}

export function shown(name: string): string {
  return printable(toText(name));
}

/** The last part of a path, without slashes; empty for the root, "." and "..". */
export function baseName(path: string): string {
  const last = path.replace(/\/+$/, "").split("/").at(-1) ?? "";
  return last === "." || last === ".." ? "" : last;
}

export function parentOf(path: string): string {
  const bare = path.replace(/\/+$/, "");
  const at = bare.lastIndexOf("/");
  if (at < 0) return ".";
  return at === 0 ? "/" : bare.slice(0, at);
}

export function join(folder: string, name: string): string {
  return folder.endsWith("/") ? `${folder}${name}` : `${folder}/${name}`;
}
