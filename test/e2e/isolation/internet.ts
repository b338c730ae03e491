import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { probe } from "../../host/network/peer.ts";
import { newSandbox } from "../sdk.ts";
import { notRefused, probeFrom } from "./probe.ts";

/** Run by `../isolation.test.ts` in a namespace that plays the host, with another one as its internet. */
const internetNetns = process.env.AENV_TEST_INTERNET_NETNS ?? "";
const HOST_PUBLIC = "93.184.216.1";
const INTERNET = "93.184.216.34";
/** Addresses the internet namespace answers at too: only rules keep sandboxes from them. */
const FORBIDDEN = ["169.254.169.254", "10.0.0.5", "172.16.0.5", "192.168.7.7", "100.64.0.5", "192.0.2.7"];
const HOST_PORT = 7000;

let peer: ChildProcess;

before(async () => {
  assert.notEqual(internetNetns, "", "run by isolation.test.ts");
  const ip = (...args: string[]): void => {
    execFileSync("ip", args);
  };
  ip("link", "set", "lo", "up");
  ip("link", "add", "up0", "type", "veth", "peer", "name", "net0", "netns", internetNetns);
  ip("addr", "add", `${HOST_PUBLIC}/24`, "dev", "up0");
  ip("link", "set", "up0", "up");
  ip("-n", internetNetns, "link", "set", "net0", "up");
  for (const address of [`${INTERNET}/24`, ...FORBIDDEN.map((each) => `${each}/32`)]) {
    ip("-n", internetNetns, "addr", "add", address, "dev", "net0");
  }
  ip("route", "add", "default", "via", INTERNET);
  const program = join(import.meta.dirname, "../../host/network/peer.ts");
  const args = [`--net=/run/netns/${internetNetns}`, process.execPath, program, "serve", "internet", "80"];
  peer = spawn("nsenter", args, { stdio: ["ignore", "pipe", "inherit"] });
  await once(peer.stdout as NodeJS.ReadableStream, "data");
  const control = createServer((socket) => socket.end("host\n")).listen(HOST_PORT, "::");
  await once(control, "listening");
  control.unref();
  // All of it is there for the host itself.
  assert.equal(await probe({ host: HOST_PUBLIC, port: HOST_PORT }), "host");
  for (const host of [INTERNET, ...FORBIDDEN]) assert.match(await probe({ host, port: 80 }), /^internet /, host);
});

after(() => peer.kill("SIGKILL"));

const kept = [...FORBIDDEN.map((host) => ({ host, port: 80 })), { host: HOST_PUBLIC, port: HOST_PORT }];
const internet = { host: INTERNET, port: 80 };

test("a sandbox reaches the internet as the host, and nothing private; also after a pause", async () => {
  await using sandbox = await newSandbox();
  const reached = { [`${INTERNET}:80`]: `connected: internet ${HOST_PUBLIC}` };
  assert.deepEqual(notRefused(await probeFrom(sandbox, [internet, ...kept])), reached);
  await sandbox.pause();
  await sandbox.connect();
  assert.deepEqual(notRefused(await probeFrom(sandbox, [internet, ...kept])), reached);
});

test("without internet access a sandbox reaches nothing; also after a pause and in a fork", async () => {
  await using sandbox = await newSandbox({ allowInternetAccess: false });
  assert.deepEqual(notRefused(await probeFrom(sandbox, [internet, ...kept])), {});
  await sandbox.pause();
  await sandbox.connect();
  assert.deepEqual(notRefused(await probeFrom(sandbox, [internet, ...kept])), {});
  const [child] = await sandbox.fork({ count: 1 });
  assert.ok(child !== undefined && !(child instanceof Error), String(child));
  try {
    assert.deepEqual(notRefused(await probeFrom(child, [internet, ...kept])), {});
  } finally {
    await child.kill();
  }
});
