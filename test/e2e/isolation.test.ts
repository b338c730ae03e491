import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createConnection, createServer, type Server } from "node:net";
import { networkInterfaces, tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { after, before, describe, it } from "node:test";
import { CommandExitError } from "e2b";
import { api, ask, to } from "./http.ts";
import { notRefused, type Peer, probeFrom } from "./isolation/probe.ts";
import { newSandbox, output } from "./sdk.ts";
import { sharedServer, until } from "./server.ts";

const SERVICE_PORT = 8080;
const PRIVATE = ["10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "169.254.169.254", "192.0.2.1"];

function hostAddresses(): string[] {
  return Object.values(networkInterfaces()).flatMap((addresses) => (addresses ?? []).map(({ address }) => address));
}

/** Every slot address routed on this host, of all its servers. */
function slotAddresses(): string[] {
  const routes = JSON.parse(execFileSync("ip", ["-json", "route"], { encoding: "utf8" })) as { dst: string }[];
  return routes.map(({ dst }) => dst).filter((dst) => /^198\.1[89]\.\d+\.\d+$/.test(dst));
}

/** What the host itself gets from a peer. */
async function fromHost({ host, port }: Peer): Promise<string> {
  const socket = createConnection({ host, port });
  socket.setTimeout(1_000, () => socket.destroy());
  socket.on("error", () => {});
  return (await text(socket).catch(() => "")).trim();
}

describe("what a sandbox can reach", { timeout: 120_000 }, () => {
  let control: Server;
  let controlPort: number;
  before(async () => {
    control = createServer((socket) => socket.on("error", () => {}).end("host\n"));
    await new Promise<void>((resolve) => control.listen(0, "::", resolve));
    const address = control.address();
    controlPort = typeof address === "object" && address !== null ? address.port : 0;
  });
  after(() => control.close());

  for (const internet of [true, false]) {
    it(`is neither the host, the control plane, neighbours nor private ranges, NET-10 (internet ${internet})`, async () => {
      const server = await sharedServer();
      await using sandbox = await newSandbox({ allowInternetAccess: internet });
      await using neighbour = await newSandbox();
      await neighbour.commands.run(
        `exec python3 -c 'import socket as s
l = s.create_server(("", ${SERVICE_PORT}))
while True: l.accept()[0].sendall(b"neighbour\\n")'`,
        { background: true, timeoutMs: 0 },
      );
      // Everything below is there for the host: only rules keep the sandbox from it.
      const hosts = hostAddresses().filter((host) => !host.startsWith("fe80"));
      for (const host of hosts) {
        const said = await fromHost({ host, port: controlPort });
        // But for an address of another server that has just ended.
        if (hostAddresses().includes(host)) assert.equal(said, "host", host);
      }
      let neighbours: Peer[] = [];
      await until("the neighbour's service", async () => {
        const slots = slotAddresses().map((host) => ({ host, port: SERVICE_PORT }));
        const said = await Promise.all(slots.map(fromHost));
        neighbours = slots;
        return said.includes("neighbour");
      });
      const gateway = await output(sandbox, "ip route show default | cut -d' ' -f3");
      const apiPort = Number(new URL(server.url).port);
      const peers = [
        ...hosts.flatMap((host) => [
          { host, port: controlPort },
          { host, port: apiPort },
        ]),
        ...[controlPort, apiPort, 49983].map((port) => ({ host: gateway, port })),
        ...neighbours,
        ...neighbours.map(({ host }) => ({ host, port: 49983 })),
        ...PRIVATE.map((host) => ({ host, port: 80 })),
        ...(internet ? [] : [{ host: "1.1.1.1", port: 443 }]),
      ];
      const open = notRefused(await probeFrom(sandbox, peers));
      // Where there is no IPv6 at all, its addresses cannot even be asked for.
      for (const [peer, outcome] of Object.entries(open)) {
        assert.ok(peer.includes("::"), `${peer} ${outcome}`);
        assert.ok(["ENETUNREACH", "EADDRNOTAVAIL", "EHOSTUNREACH"].includes(outcome), `${peer} ${outcome}`);
      }
    });
  }

  it("is the public internet, by its own address alone, when that is allowed", { skip: !isRoot() }, async (t) => {
    const [host, internet] = [`aenve2e${process.pid}-host`, `aenve2e${process.pid}-net`];
    for (const name of [host, internet]) execFileSync("ip", ["netns", "add", name]);
    try {
      // Servers of this host are none of the one that is played.
      const { NODE_TEST_CONTEXT: _, AENV_TEST_SERVERS: __, ...env } = process.env;
      const tests = join(import.meta.dirname, "isolation/internet.ts");
      const child = spawn("nsenter", [`--net=/run/netns/${host}`, process.execPath, "--test-reporter=tap", tests], {
        env: { ...env, AENV_TEST_INTERNET_NETNS: internet },
        stdio: ["ignore", "pipe", "inherit"],
        signal: t.signal,
        killSignal: "SIGTERM",
      });
      const [said, [exitCode]] = await Promise.all([text(child.stdout), once(child, "exit")]);
      assert.equal(exitCode, 0, said);
    } finally {
      for (const name of [host, internet]) execFileSync("ip", ["netns", "del", name]);
    }
  });
});

describe("what a sandbox can see", { timeout: 120_000 }, () => {
  it("is its own processes, mounts and files, not the host's", async () => {
    const server = await sharedServer();
    const folder = mkdtempSync(join(tmpdir(), "aenv-secret-"));
    writeFileSync(join(folder, "secret"), "of the host");
    await using sandbox = await newSandbox();
    try {
      const processes = await output(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '");
      for (const name of ["keeper", "blobd", "aenvd", "runsc", "node"]) assert.ok(!processes.includes(name), processes);
      assert.equal(await output(sandbox, "cat /proc/1/cmdline | tr -d '\\0'"), "/.aenv/envd");
      const root = { user: "root" } as const;
      const look = async (command: string): Promise<string> => (await sandbox.commands.run(command, root)).stdout;
      assert.equal(
        await look(`cat ${folder}/secret ${server.dataDir}/api-key 2>&1 | grep -vc 'No such file' || true`),
        "0\n",
      );
      assert.ok(!(await look("cat /proc/mounts /proc/self/mountinfo")).includes(server.dataDir));
      assert.ok(!(await look("cat /proc/net/tcp /proc/net/unix")).includes("aenv"));
      // Of this name is also the folder of the host's servers; this one is the sandbox's own.
      assert.equal(await look("ls /run/aenv"), "generation\n");
      // Root inside is nobody outside: no device of the host can be had, the agent cannot be replaced.
      const denied = "mknod /tmp/disk b 254 0; mknod /tmp/mem c 1 1; cat /tmp/disk /tmp/mem | head -c 1 | wc -c";
      assert.match(await look(`(${denied}) 2>/dev/null`), /^0$/m);
      await assert.rejects(sandbox.commands.run("echo x > /.aenv/envd", root), CommandExitError);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it("is the same address in every sandbox, and a name of its own", async () => {
    await using one = await newSandbox();
    await using two = await newSandbox();
    const look = "ip -4 -o addr show scope global | tr -s ' ' | cut -d' ' -f2,4; ip route; cat /etc/hostname";
    const [first, second] = await Promise.all([output(one, look), output(two, look)]);
    assert.equal(first.replace(one.sandboxId, ""), second.replace(two.sandboxId, ""));
    assert.match(first, /\d+\.\d+\.\d+\.\d+\/30/);
    assert.ok(first.endsWith(one.sandboxId) && second.endsWith(two.sandboxId));
  });
});

describe("the agent", { timeout: 120_000 }, () => {
  it("obeys nobody without the token, inside or outside, and takes no new identity from the guest", async () => {
    const server = await sharedServer();
    await using sandbox = await newSandbox({ envs: { KEPT: "yes" } });
    const call = async (method: string, path: string, more = ""): Promise<string> =>
      output(
        sandbox,
        `curl -s -o /dev/null -w '%{http_code}' -X ${method} -H 'Content-Type: application/json' ${more} http://127.0.0.1:49983${path}`,
      );
    assert.equal(await call("GET", "/health"), "204");
    const init = `-d '{"accessToken":"","initKey":"mine","envVars":{}}'`;
    for (const more of [init, `${init} -H 'X-Init-Key: guess'`, `${init} -H 'X-Init-Key;'`]) {
      assert.equal(await call("POST", "/init", more), "401");
    }
    assert.equal(await call("POST", "/memory", "-d '{}'"), "401");
    assert.equal(await call("GET", "/forward?port=22", "-H 'Connection: Upgrade' -H 'Upgrade: aenv-tcp'"), "401");
    for (const path of ["/process.Process/List", "/filesystem.Filesystem/ListDir"]) {
      assert.equal(await call("POST", path, `-d '{"path":"/"}'`), "401");
    }
    assert.equal(await call("GET", "/files?path=/etc/hostname"), "401");
    assert.equal(await output(sandbox, "echo $KEPT"), "yes");
    // The key is nowhere in sight of the guest: neither its processes' environment nor the agent's memory can be read.
    const root = await sandbox.commands.run("tr '\\0' '\\n' < /proc/1/environ; cat /proc/1/mem 2>&1 | wc -c", {
      user: "root",
    });
    assert.doesNotMatch(root.stdout, /key/i);

    const outside = async (headers: Record<string, string>): Promise<number> =>
      (
        await ask(server, {
          path: "/files?path=/etc/hostname",
          headers: { ...to(sandbox.sandboxId, 49983), ...headers },
        })
      ).status;
    const { json } = await api(server, "GET", `/sandboxes/${sandbox.sandboxId}`);
    const token = (json as { envdAccessToken: string }).envdAccessToken;
    assert.equal(await outside({}), 401);
    assert.equal(await outside({ "X-Access-Token": `${token}x` }), 401);
    assert.equal(await outside({ "X-API-Key": server.apiKey }), 401);
    assert.equal(await outside({ "X-Access-Token": token }), 200);
  });
});

function isRoot(): boolean {
  return process.getuid?.() === 0;
}
