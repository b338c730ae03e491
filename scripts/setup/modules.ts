import { createHash } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { npm, root } from "./node.js";
import { run } from "./run.ts";
import type { Step } from "./steps.ts";

const marker = join(root, "node_modules", ".aenv-lock-hash");

/** node_modules as package-lock.json says. */
export const modulesStep: Step = {
  title: "node modules",
  estimateS: 15,

  pending() {
    const present = existsSync(marker) && readFileSync(marker, "utf8") === lockHash();
    return Promise.resolve(present ? undefined : "npm ci");
  },

  async run() {
    const hash = lockHash();
    await run([...npm(), "ci", "--no-audit", "--no-fund", "--loglevel=error"], { cwd: root, asOwner: true });
    writeFileSync(marker, hash);
  },
};

function lockHash(): string {
  return createHash("sha256")
    .update(readFileSync(join(root, "package-lock.json")))
    .digest("hex");
}
