import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { Sandbox } from "e2b";

const sandbox = await Sandbox.create("base", { timeoutMs: 60_000 });
assert.equal(sandbox.sandboxDomain, process.env.E2B_DOMAIN);
assert.equal((await sandbox.commands.run("echo hi")).stdout, "hi\n");
const large = "x".repeat(8 * 1024 * 1024);
await sandbox.files.write("large", large);
assert.equal(await sandbox.files.read("large"), large);
const signed = await sandbox.downloadUrl("large", { useSignatureExpiration: 60 });
assert.equal((await (await fetch(signed)).text()).length, large.length);

await sandbox.commands.run("exec python3 -m http.server 8000 --bind 127.0.0.1", { background: true });
const url = `https://${sandbox.getHost(8000)}/`;
let answer = await fetch(url);
for (let left = 50; answer.status !== 200 && left > 0; left -= 1) {
  await sleep(100);
  answer = await fetch(url);
}
assert.equal(answer.status, 200);

const many = await Promise.all(Array.from({ length: 40 }, (_, at) => sandbox.commands.run(`echo ${at}`)));
assert.deepEqual(
  many.map(({ stdout }) => Number(stdout)),
  many.map((_, at) => at),
);

const running = sandbox.commands.run("sleep 60").catch((error: unknown) => error);
await sandbox.kill();
assert.ok((await running) instanceof Error);
assert.equal(await sandbox.isRunning(), false);
const gone = await fetch(url);
assert.equal(gone.status, 502);
const body = { sandboxId: sandbox.sandboxId, message: "The sandbox was not found", code: 502 };
assert.deepEqual(await gone.json(), body);
process.stdout.write("done\n");
