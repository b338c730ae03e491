import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:net";
import { after, before, describe, test } from "node:test";
import { MIB, type Resources } from "#domain";
import { patience, TestAgent } from "../../src/driver/testing/agent.ts";
import type { FirecrackerBench } from "../host/firecracker/bench.ts";
import { fromEnvironment } from "../host/machines/host.ts";
import { initImage } from "./init-image.ts";
import { openLinuxBench } from "./linux-bench.ts";

const SMALL: Resources = { vcpus: 1, memoryBytes: 128 * MIB, diskBytes: 300 * MIB, pidsMax: 1024 };

describe("a Linux guest of the Firecracker driver", { timeout: patience(120_000) }, () => {
  let bench: FirecrackerBench;

  before(async () => {
    bench = await openLinuxBench();
  });
  after(() => bench[Symbol.asyncDispose]());

  const ready = async (address: string | undefined): Promise<TestAgent> => {
    assert.ok(address !== undefined);
    const agent = new TestAgent(address);
    await agent.ready();
    return agent;
  };

  test("has the disk, the files and the rights of a machine of its own, and reaches nobody but the internet", async () => {
    const spec = await bench.spec(SMALL);
    const machine = await bench.driver.boot(spec);
    const agent = await ready(bench.agentAddress(spec));

    const asked = [
      "df --output=size -B1 / | tail -1",
      "hostname",
      "ulimit -n",
      "cat /proc/1/comm",
      "echo $(stat -f -c %T /.aenv /tmp /dev/shm)",
      "touch /.aenv/x 2>&1 | grep -o 'Read-only'",
      "mkdir -p /mnt/t && mount -t tmpfs none /mnt/t && echo mounted",
      "ls /dev/fuse /dev/net/tun | wc -l",
    ];
    const { stdout, stderr } = await agent.run(asked.join("; "));
    const [size, hostname, files, init, systems, readOnly, mounted, devices] = stdout.split("\n");
    assert.ok(Number(size) > SMALL.diskBytes * 0.9 && Number(size) <= SMALL.diskBytes, `${size} bytes; ${stderr}`);
    assert.deepEqual(
      [hostname, files, init, readOnly, mounted, devices],
      [spec.hostname, "1048576", "envd", "Read-only", "mounted", "2"],
      stderr,
    );
    assert.match(systems ?? "", /^\S+ overlayfs tmpfs/);

    const neighbour = await bench.spec(SMALL);
    const host = createServer((socket) => socket.end("host"));
    host.listen(0, "0.0.0.0");
    await once(host, "listening");
    const address = host.address();
    assert.ok(address !== null && typeof address === "object");
    const targets = [
      [bench.host.claim.network.gateway, address.port],
      [bench.agentAddress(neighbour)?.split(":")[0], 49983],
      ["169.254.169.254", 80],
      ["10.0.0.1", 80],
      [spec.network.gateway, address.port],
    ];
    const tries = targets.map(
      ([to, port]) => `timeout 5 bash -c 'exec 3<>/dev/tcp/${to}/${port} && echo ${to}:${port}' &`,
    );
    assert.equal((await agent.run(`${tries.join("\n")}\nwait`)).stdout, "", "these were reached");
    host.close();
    agent.close();
    await machine.stop();
  });

  test("an image that brings its own init runs it as process 1, with the agent beside it, also after a restore", async () => {
    // What the image's init is to find is not in the modules, of which each takes its time.
    await bench.driver.close();
    await bench.open({ initrdPath: fromEnvironment("AENV_TEST_SMALL_INITRD") });
    const image = await initImage(bench);
    const spec = await bench.spec(SMALL, { file: image, init: ["/sbin/init"] });
    const machine = await bench.driver.boot(spec);
    const agent = await ready(bench.agentAddress(spec));
    const state = "readlink /proc/1/exe; cat /run/service.pid; kill -0 $(cat /run/service.pid) && echo alive";
    const { stdout, stderr } = await agent.run(state);
    const [program, pid, alive] = stdout.split("\n");
    assert.deepEqual([program, alive], ["/bin/busybox", "alive"], stderr);
    const dir = `${bench.host.dir}/own-init`;
    await machine.checkpoint(dir, { keepRunning: false });
    agent.close();

    const again = await bench.spec(SMALL, { file: image, init: ["/sbin/init"] });
    const restored = await bench.driver.restore(again, dir);
    const restoredAgent = await ready(bench.agentAddress(again));
    assert.deepEqual((await restoredAgent.run(state)).stdout.split("\n"), [program, pid, alive]);
    // Its services are its own to keep: one that ends is started again.
    const respawned = await restoredAgent.run(
      `kill ${pid}; until [ "$(cat /run/service.pid)" != ${pid} ]; do sleep 0.1; done; echo respawned`,
    );
    assert.equal(respawned.stdout, "respawned");
    // A machine is over when its init says so.
    await restoredAgent.spawn("reboot -f");
    const exit = await restored.exited;
    assert.equal(exit.reason, "crashed");
    await bench.driver.destroy(again.id);
    restoredAgent.close();
  });
});
