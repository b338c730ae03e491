import { randomBytes } from "node:crypto";

/** What such names look like. */
export const NAME = /^[0-9a-f]{16}$/;

/** A name nothing else has: 16 lower-case hexadecimal digits. */
export function newName(): string {
  return randomBytes(8).toString("hex");
}
