import { randomBytes, randomUUID } from "node:crypto";
import type { SandboxId } from "./sandbox.ts";

const ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789";

/** `length` random characters of [a-z0-9], without bias. */
function randomName(length: number): string {
  let name = "";
  while (name.length < length) {
    for (const byte of randomBytes(length)) {
      if (byte < 252 && name.length < length) name += ALPHABET[byte % 36];
    }
  }
  return name;
}

export const SANDBOX_ID_LENGTH = 20;
const SANDBOX_ID = /^i[a-z0-9]{19}$/;

export function newSandboxId(): SandboxId {
  return `i${randomName(SANDBOX_ID_LENGTH - 1)}`;
}
export function isSandboxId(text: string): boolean {
  return SANDBOX_ID.test(text);
}
/** Template and snapshot ids: 20 of [a-z0-9] (E2B's form). */
export function newTemplateId(): string {
  return randomName(20);
}
export function newBuildId(): string {
  return randomUUID();
}
/** Secrets: access tokens, init keys. */
export function newToken(): string {
  return randomBytes(24).toString("hex");
}
/** A control-plane key in E2B's form, which older SDKs check. */
export function newApiKey(): string {
  return `e2b_${randomBytes(20).toString("hex")}`;
}
