import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { createSocket } from "node:dgram";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createConnection, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { after, before, test } from "node:test";
import { silentLogger } from "#lib/log";
import {
  claimServer,
  createSlots,
  forwardingDroppedBy,
  INNER_ADDRESS,
  INNER_GATEWAY,
  MAX_SERVERS,
  removeServerNetwork,
  type ServerClaim,
  type Slot,
  type SlotPool,
} from "#network";
import { FLOWS_MAX } from "../../../src/network/policy.ts";
import { slotTools } from "../machines/host.ts";
import { probe, type Target } from "./peer.ts";

/** Run by `../network.test.ts`, in the namespace that plays the host. */
const internetNetns = process.env.AENV_TEST_INTERNET_NETNS ?? "";
const HOST_PUBLIC = "93.184.216.1";
const INTERNET = "93.184.216.34";
/** Addresses the internet namespace answers at too, and the host routes there: only rules keep sandboxes from them. */
const FORBIDDEN = ["169.254.169.254", "10.0.0.5", "172.16.0.5", "192.168.7.7", "100.64.0.5", "192.0.2.7"];
const HOST_PORT = 7000;
const PUBLISHED_PORT = 7001;
const REDIRECTED_PORT = 7002;
const SERVICE_PORT = 8080;
const NOBODY = 65_534;

const OPEN = { internet: true };
const SHUT = { internet: false };

const tools = slotTools();
const { runner } = tools;
const peerProgram = join(import.meta.dirname, "peer.ts");
const children: ChildProcess[] = [];
const folders: string[] = [];
let claim: ServerClaim;
let slots: SlotPool;

function ip(...args: string[]): void {
  execFileSync("ip", args);
}

function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "aenv-network-"));
  folders.push(folder);
  return folder;
}

async function serveIn(netnsPath: string, label: string, ...ports: number[]): Promise<ChildProcess> {
  const args = [`--net=${netnsPath}`, process.execPath, peerProgram, "serve", label, ...ports.map(String)];
  const child = spawn("nsenter", args, { stdio: ["ignore", "pipe", "inherit"] });
  children.push(child);
  await once(child.stdout, "data");
  return child;
}

async function probeFrom(netnsPath: string, targets: readonly Target[]): Promise<string[]> {
  const { stdout } = await runner.run([process.execPath, peerProgram, "probe"], {
    netnsPath,
    stdin: JSON.stringify(targets),
  });
  return JSON.parse(new TextDecoder().decode(stdout)) as string[];
}

/** From the host, as another user than root, by a shell: such a user may not read this checkout. */
async function probeAs(uid: number, targets: readonly Target[]): Promise<string[]> {
  const ask = ({ host, port }: Target): string =>
    `( { exec 3<>/dev/tcp/${host}/${port}; } 2>/dev/null && { read -r -t 1 said <&3; echo "$said"; } || echo refused )`;
  const script = targets.map(ask).join("\n");
  const child = spawn("bash", ["-c", script], { uid, gid: uid, cwd: "/", stdio: ["ignore", "pipe", "ignore"] });
  return (await text(child.stdout)).trimEnd().split("\n");
}

/** Runs the peer program inside to its end. */
async function peer(slot: Slot, ...args: (string | number)[]): Promise<void> {
  await runner.run([process.execPath, peerProgram, ...args.map(String)], { netnsPath: slot.netnsPath });
}

function flowsOnHost(): number {
  return Number(readFileSync("/proc/sys/net/netfilter/nf_conntrack_count", "utf8"));
}

async function reaches(slot: Slot, host: string, port: number): Promise<string> {
  const [outcome = ""] = await probeFrom(slot.netnsPath, [{ host, port }]);
  return outcome;
}

async function allRefused(slot: Slot, targets: readonly Target[]): Promise<void> {
  const outcomes = await probeFrom(slot.netnsPath, targets);
  const named = targets.map(({ host, port }, index) => `${host}:${port} ${outcomes[index]}`);
  assert.deepEqual(
    named,
    targets.map(({ host, port }) => `${host}:${port} ECONNREFUSED`),
  );
}

function atSlot(slot: Slot, port = SERVICE_PORT): Promise<string> {
  return probe({ host: slot.hostAddress, port });
}

/** Everything on this host that carries the server's name or lies in its block. */
function traces(): string[] {
  const { prefix, network } = claim;
  const said = ["link", "route", "addr"].map((what) => execFileSync("ip", ["-o", what], { encoding: "utf8" }));
  said.push(execFileSync("nft", ["list", "tables"], { encoding: "utf8" }), readdirSync("/run/netns").join("\n"));
  const block = network.block.slice(0, network.block.lastIndexOf("."));
  const mark = new RegExp(`\\b${prefix}(?:[-h]|$)|\\b${block.replaceAll(".", "\\.")}\\.`);
  return said.flatMap((text) => text.split("\n")).filter((line) => mark.test(line));
}

before(async () => {
  assert.notEqual(internetNetns, "", "run by network.test.ts");
  ip("link", "set", "lo", "up");
  ip("link", "add", "up0", "type", "veth", "peer", "name", "net0", "netns", internetNetns);
  ip("addr", "add", `${HOST_PUBLIC}/24`, "dev", "up0");
  ip("link", "set", "up0", "up");
  ip("-n", internetNetns, "link", "set", "net0", "up");
  ip("-n", internetNetns, "addr", "add", `${INTERNET}/24`, "dev", "net0");
  for (const address of FORBIDDEN) ip("-n", internetNetns, "addr", "add", `${address}/32`, "dev", "net0");
  ip("route", "add", "default", "via", INTERNET);
  // A service published on the host, as container engines do, and traffic led through the host, as transparent proxies do.
  const chain = `{ type nat hook prerouting priority dstnat; }`;
  const rule = `fib daddr type local tcp dport ${PUBLISHED_PORT} dnat to ${INTERNET}:80`;
  const redirect = `tcp dport ${REDIRECTED_PORT} dnat to ${HOST_PUBLIC}:${HOST_PORT}`;
  const add = [
    `table ip other`,
    `chain ip other nat ${chain}`,
    `rule ip other nat ${rule}`,
    `rule ip other nat ${redirect}`,
  ];
  execFileSync("nft", [add.map((what) => `add ${what}`).join("; ")]);
  await serveIn(`/run/netns/${internetNetns}`, "internet", 80);
  const control = createServer((socket) => socket.end("control plane\n")).listen(HOST_PORT, "::");
  await once(control, "listening");
  control.unref();

  claim = await claimServer({ dataDir: temporaryFolder(), onStale: (gone) => removeServerNetwork(tools, gone) });
  slots = createSlots({ ...tools, server: claim.network, log: silentLogger, ready: 2, max: 3 });
  await slots.recover([]);
  await slots.settled();
});

after(async () => {
  for (const child of children) child.kill("SIGKILL");
  await slots.close();
  await removeServerNetwork(tools, claim.network);
  await claim.release();
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
});

test("the host reaches each sandbox at its own address, on any port; inside, all have the same address", async () => {
  const [a, b] = [await slots.acquire(OPEN), await slots.acquire(OPEN)];
  await Promise.all([serveIn(a.netnsPath, "a", SERVICE_PORT, 1, 65535), serveIn(b.netnsPath, "b", SERVICE_PORT)]);
  for (const port of [SERVICE_PORT, 1, 65535]) assert.equal(await atSlot(a, port), `a ${claim.network.gateway}`);
  assert.equal(await atSlot(b), `b ${claim.network.gateway}`);
  assert.equal(await atSlot(b, 1), "ECONNREFUSED");

  const socket = createSocket("udp4");
  socket.send("hello", SERVICE_PORT, b.hostAddress);
  const [answer] = await once(socket, "message", { signal: AbortSignal.timeout(5000) });
  assert.equal(String(answer), `b ${claim.network.gateway}`);
  socket.close();

  for (const slot of [a, b]) {
    const inside = execFileSync("nsenter", [`--net=${slot.netnsPath}`, "ip", "-o", "addr", "show", slot.device]);
    assert.match(inside.toString(), new RegExp(`inet ${INNER_ADDRESS}/30`));
    assert.doesNotMatch(inside.toString(), /inet6/);
  }

  const toItself = { host: a.hostAddress, port: SERVICE_PORT };
  await allRefused(a, [{ host: b.hostAddress, port: SERVICE_PORT }, toItself]);
  await Promise.all([slots.release(a), slots.release(b)]);
});

test("a sandbox reaches the internet, and neither the host, metadata nor private addresses", async () => {
  const slot = await slots.acquire(OPEN);
  for (const host of FORBIDDEN)
    assert.match(await probe({ host, port: 80 }), /^internet /, `${host} is there for the host`);
  assert.equal(await probe({ host: HOST_PUBLIC, port: HOST_PORT }), "control plane");

  assert.equal(await reaches(slot, INTERNET, 80), `internet ${HOST_PUBLIC}`);
  const never = [claim.network.gateway, slot.hostAddress, INNER_GATEWAY, "127.0.0.1", "::1"];
  const refused = never.map((host) => ({ host, port: HOST_PORT }));
  refused.push(...FORBIDDEN.map((host) => ({ host, port: 80 })));
  await allRefused(slot, refused);

  // Each of the two tables holds without the other.
  const hostTable = execFileSync("nft", ["list", "table", "inet", claim.prefix], { encoding: "utf8" });
  execFileSync("nft", ["delete", "table", "inet", claim.prefix]);
  await allRefused(slot, refused);
  execFileSync("nft", ["-f", "-"], { input: hostTable });
  const open = "flush chain inet aenv egress; add rule inet aenv egress accept";
  const edge = slot.netnsPath.replace("-s", "-e");
  execFileSync("nsenter", [`--net=${edge}`, "nft", open]);
  refused.push({ host: HOST_PUBLIC, port: HOST_PORT });
  refused.push({ host: HOST_PUBLIC, port: PUBLISHED_PORT }, { host: INTERNET, port: REDIRECTED_PORT });
  await allRefused(slot, refused);
  await slots.release(slot);
});

test("a sandbox speaks only with its own address", async () => {
  const slot = await slots.acquire(OPEN);
  execFileSync("nsenter", [`--net=${slot.netnsPath}`, "ip", "addr", "add", "93.184.216.99/32", "dev", slot.device]);
  const edge = slot.netnsPath.replace("-s", "-e");
  const count =
    "add chain ip seen c { type filter hook forward priority -200; }; add rule ip seen c ip saddr 93.184.216.99 counter";
  execFileSync("nsenter", [`--net=${edge}`, "nft", `add table ip seen; ${count}`]);
  const target = { host: INTERNET, port: 80 };
  const outcomes = await probeFrom(slot.netnsPath, [target, { ...target, from: "93.184.216.99" }]);
  assert.deepEqual(outcomes, [`internet ${HOST_PUBLIC}`, "timeout"]);
  const seen = execFileSync("nsenter", [`--net=${edge}`, "nft", "list", "table", "ip", "seen"], { encoding: "utf8" });
  assert.match(seen, /counter packets 0 /);
  await slots.release(slot);
});

/** Asks by ARP for the gateway, in the names of 200 others and at last in its own; prints whether its own was answered. */
const ARP_FLOOD = `
import socket, sys
device, own, gateway = sys.argv[1:]
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806)); link.bind((device, 0)); link.settimeout(5)
mac = link.getsockname()[4]
def ask(name):
    head = b"\\xff" * 6 + mac + b"\\x08\\x06\\0\\x01\\x08\\0\\6\\4\\0\\1"
    link.send(head + mac + socket.inet_aton(name) + b"\\0" * 6 + socket.inet_aton(gateway))
for number in range(200): ask("169.254.1.%d" % number)
ask(own)
while link.recv(100)[20:22] != b"\\0\\2": pass
print("answered")
`;

test("a sandbox that asks in other names by ARP fills no table of the host's", async () => {
  const slot = await slots.acquire(OPEN);
  const neighbours = (): string[] =>
    execFileSync("nsenter", [`--net=${slot.netnsPath.replace("-s", "-e")}`, "ip", "neigh", "show"], {
      encoding: "utf8",
    })
      .split("\n")
      .filter((line) => line !== "");
  const before = neighbours().length;
  const inside = [`--net=${slot.netnsPath}`, "python3", "-c", ARP_FLOOD, slot.device, INNER_ADDRESS, INNER_GATEWAY];
  assert.equal(execFileSync("nsenter", inside, { encoding: "utf8", timeout: 20_000 }).trim(), "answered");
  assert.ok(neighbours().length <= before + 1, neighbours().join("\n"));
  await slots.release(slot);
});

// Before the next ones, which leave the internet's side with closed connections on thousands of ports.
test("an open connection of a sandbox that is gone is not remembered for days", async () => {
  const slot = await slots.acquire(OPEN);
  const stream = spawn("nsenter", [`--net=${slot.netnsPath}`, process.execPath, peerProgram, "talk", INTERNET, "80"]);
  children.push(stream);
  await once(stream.stdout, "data", { signal: AbortSignal.timeout(10_000) });
  await slots.release(slot);
  // Its line: protocol names and numbers, seconds left, state, addresses.
  const line = readFileSync("/proc/net/nf_conntrack", "utf8")
    .split("\n")
    .find((text) => text.includes(`src=${slot.hostAddress} dst=${INTERNET}`) && text.includes("ESTABLISHED"));
  const secondsLeft = Number(line?.split(/ +/)[4]);
  assert.ok(secondsLeft > 7000 && secondsLeft <= 7440, line);
});

test("a sandbox that opens flows without end does not fill the host's table, nor cut off others or what it has open", async () => {
  const [greedy, other] = [await slots.acquire(OPEN), await slots.acquire(OPEN)];
  await serveIn(greedy.netnsPath, "greedy", SERVICE_PORT);
  const stream = spawn("nsenter", [`--net=${greedy.netnsPath}`, process.execPath, peerProgram, "talk", INTERNET, "80"]);
  children.push(stream);
  await once(stream.stdout, "data", { signal: AbortSignal.timeout(10_000) });
  const from = flowsOnHost();
  await peer(greedy, "flood", INTERNET, 1, 20_000);
  assert.ok(flowsOnHost() - from < 10, "many packets are one flow");
  assert.match(await reaches(greedy, INTERNET, 80), /^internet /);
  // The second lasts long enough for the rate to let in more than the count does.
  for (const ports of [10_000, 60_000]) {
    await peer(greedy, "flood", INTERNET, ports, 1);
    const more = flowsOnHost() - from;
    assert.ok(more > FLOWS_MAX * 0.9 && more < FLOWS_MAX + 20, `${more} more connections`);
  }

  assert.match(await reaches(greedy, INTERNET, 80), /^(?:ECONNREFUSED|timeout)$/, "one more flow");
  stream.stdin.write("still here\n");
  const [echo] = await once(stream.stdout, "data", { signal: AbortSignal.timeout(5000) });
  assert.equal(String(echo), "still here\n");
  assert.equal(await atSlot(greedy), `greedy ${claim.network.gateway}`);
  assert.match(await reaches(other, INTERNET, 80), /^internet /);
  await Promise.all([slots.release(greedy), slots.release(other)]);
});

test("nor does one that opens and closes them: the host remembers what is closed", async (t) => {
  const slot = await slots.acquire(OPEN);
  const from = flowsOnHost();
  await peer(slot, "churn", INTERNET, 80, 3 * FLOWS_MAX);
  const more = flowsOnHost() - from;
  t.diagnostic(`${more} more connections`);
  assert.ok(more > FLOWS_MAX * 0.9 && more < FLOWS_MAX * 1.4, `${more} more connections`);
  await slots.release(slot);
});

test("without internet nothing leaves but answers", async () => {
  const slot = await slots.acquire(SHUT);
  await serveIn(slot.netnsPath, "shut", SERVICE_PORT);
  assert.equal(await reaches(slot, INTERNET, 80), "ECONNREFUSED");
  assert.equal(await atSlot(slot), `shut ${claim.network.gateway}`);
  await slots.release(slot);
});

test("other machines do not reach a slot through the host", async () => {
  const slot = await slots.acquire(OPEN);
  await serveIn(slot.netnsPath, "private", SERVICE_PORT);
  ip("-n", internetNetns, "route", "add", "198.18.0.0/15", "via", HOST_PUBLIC);
  const target = { host: slot.hostAddress, port: SERVICE_PORT };
  const outcomes = await probeFrom(`/run/netns/${internetNetns}`, [target, { host: HOST_PUBLIC, port: HOST_PORT }]);
  assert.deepEqual(outcomes, ["timeout", "control plane"]);
  await slots.release(slot);
});

test("users of the host without root do not reach a slot, and root does", async () => {
  const slot = await slots.acquire(OPEN);
  await serveIn(slot.netnsPath, "private", SERVICE_PORT);
  const targets = [
    { host: slot.hostAddress, port: SERVICE_PORT },
    { host: HOST_PUBLIC, port: HOST_PORT },
  ];
  assert.deepEqual(await probeAs(NOBODY, targets), ["refused", "control plane"]);
  assert.equal(await atSlot(slot), `private ${claim.network.gateway}`);
  await slots.release(slot);
});

test("a slot given back comes again as new, whatever its last sandbox left in it", async () => {
  const held = [await slots.acquire(OPEN), await slots.acquire(OPEN)];
  const used = await slots.acquire(SHUT);
  const straggler = await serveIn(used.netnsPath, "straggler", SERVICE_PORT);
  const connection = createConnection(SERVICE_PORT, used.hostAddress);
  await once(connection, "data");
  execFileSync("nsenter", [`--net=${used.netnsPath}`, "ip", "addr", "flush", "dev", used.device]);
  await slots.release(used);
  const fresh = await slots.acquire(OPEN);
  assert.equal(fresh.index, used.index);
  assert.equal(straggler.exitCode, null);
  assert.equal(await atSlot(fresh), "ECONNREFUSED", "the straggler is out of reach");
  await serveIn(fresh.netnsPath, "fresh", SERVICE_PORT);
  assert.equal(await atSlot(fresh), `fresh ${claim.network.gateway}`);
  assert.match(await reaches(fresh, INTERNET, 80), /^internet /);
  connection.destroy();
  await Promise.all([...held, fresh].map((slot) => slots.release(slot)));
  await slots.settled();
});

test("a new server takes up held slots, their connections and policy go on, and the rest is removed", async () => {
  const kept = await slots.acquire(SHUT);
  const lost = await slots.acquire(OPEN);
  await serveIn(kept.netnsPath, "kept", SERVICE_PORT);
  const connection = createConnection(SERVICE_PORT, kept.hostAddress);
  await once(connection, "data");
  await slots.close();

  slots = createSlots({ ...tools, server: claim.network, log: silentLogger, ready: 0, max: 3 });
  const [taken] = await slots.recover([{ index: kept.index, policy: SHUT }]);
  assert.deepEqual(taken, kept);
  assert.deepEqual(
    readdirSync("/run/netns")
      .filter((name) => name.startsWith(`${claim.prefix}-`))
      .sort(),
    [`${claim.prefix}-e${kept.index}`, `${claim.prefix}-s${kept.index}`],
  );
  connection.write("still here\n");
  const [echo] = await once(connection, "data", { signal: AbortSignal.timeout(5000) });
  assert.equal(String(echo), "still here\n");
  connection.destroy();
  assert.equal(await reaches(kept, INTERNET, 80), "ECONNREFUSED");
  assert.match(await atSlot(lost), /^E(?:HOST|NET)UNREACH$/);
});

test("warm slots are handed out in less than a millisecond", async (t) => {
  await slots.close();
  slots = createSlots({ ...tools, server: claim.network, log: silentLogger, ready: 8, max: 16 });
  const startMs = performance.now();
  await slots.recover([]);
  await slots.settled();
  t.diagnostic(`8 slots made in ${(performance.now() - startMs).toFixed(0)} ms, two at a time`);
  const timesMs: number[] = [];
  const taken: Slot[] = [];
  for (let index = 0; index < 8; index += 1) {
    const beforeMs = performance.now();
    taken.push(await slots.acquire(OPEN));
    timesMs.push(performance.now() - beforeMs);
  }
  timesMs.sort((a, b) => a - b);
  t.diagnostic(`acquire from the pool: median ${timesMs[4]?.toFixed(3)} ms, worst ${timesMs[7]?.toFixed(3)} ms`);
  assert.ok((timesMs[4] ?? 1) < 1);
  const releasedMs = performance.now();
  for (const slot of taken) await slots.release(slot);
  await slots.settled();
  assert.deepEqual(slots.stats(), { free: 16, total: 16, ready: 8 });
  t.diagnostic(`8 slots removed and 8 made in ${(performance.now() - releasedMs).toFixed(0)} ms`);
});

test("a firewall of others that drops what is forwarded is named", async () => {
  assert.deepEqual(await forwardingDroppedBy(runner), []);
  execFileSync("nft", ["add chain ip other F { type filter hook forward priority 0; policy drop; }"]);
  assert.deepEqual(await forwardingDroppedBy(runner), ["ip other F"]);
  execFileSync("nft", ["delete chain ip other F"]);
});

test("closing with remove leaves nothing; so does taking over a claim whose folder is gone", async () => {
  await slots.close({ remove: true });
  assert.deepEqual(traces(), []);

  const gone = createSlots({ ...tools, server: claim.network, log: silentLogger, ready: 2, max: 3 });
  await gone.recover([]);
  await gone.acquire(OPEN);
  await gone.settled();
  await gone.close();
  assert.notDeepEqual(traces(), []);

  // A claims folder of our own in which only this server's index can be taken over.
  const claimsDir = temporaryFolder();
  for (let index = 0; index < MAX_SERVERS; index += 1) {
    const owner = index === claim.index ? join(claimsDir, "gone") : "/";
    writeFileSync(join(claimsDir, String(index)), JSON.stringify({ dataDir: owner }));
  }
  const dataDir = join(temporaryFolder(), "next");
  mkdirSync(dataDir);
  const next = await claimServer({ dataDir, claimsDir, onStale: (gone) => removeServerNetwork(tools, gone) });
  assert.equal(next.index, claim.index);
  assert.match(readFileSync(join(claimsDir, String(next.index)), "utf8"), /next/);
  assert.deepEqual(traces(), []);
});
