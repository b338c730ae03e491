import { randomBytes } from "node:crypto";

/** A name nothing else has: 16 lower-case hexadecimal digits. */
export function newName(): string {
  return randomBytes(8).toString("hex");
}
