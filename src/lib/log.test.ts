import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, openSync } from "node:fs";
import { text } from "node:stream/consumers";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

test("a log that cannot be written, as on a full disk, does not end the process that writes it (RES-06)", async () => {
  const log = fileURLToPath(new URL("log.ts", import.meta.url));
  const program = `
    const { createLogger, writeStderr } = await import(${JSON.stringify(log)});
    const logger = createLogger("info", writeStderr);
    logger.error("one");
    await new Promise((resolve) => setTimeout(resolve, 10));
    logger.error("two");
    console.log("alive");
  `;
  const full = openSync("/dev/full", "w");
  const child = spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: ["ignore", "pipe", full] });
  closeSync(full);
  assert.ok(child.stdout !== null);
  const [said, [code]] = await Promise.all([text(child.stdout), once(child, "exit")]);
  assert.deepEqual([said.trim(), code], ["alive", 0]);
});
