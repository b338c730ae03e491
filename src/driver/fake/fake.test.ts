import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import { DEFAULT_RESOURCES } from "#domain";
import { localRunner } from "#lib/spawn";
import { CheckpointError, type MachineSpec } from "../driver.ts";
import { type DriverHarness, driverSuite, testMachineId, testNetwork } from "../testing.ts";
import { createFakeDriver, FakeHost } from "./index.ts";

const NO_STATE = "the fake driver starts a new machine from every checkpoint";
const NO_LIMITS = "the fake driver limits nothing";

function fakeSpec(): MachineSpec {
  return {
    id: testMachineId(),
    resources: DEFAULT_RESOURCES,
    hostname: "fake",
    image: { dir: "/", file: "/dev/null" },
    agentDir: "/",
    network: testNetwork({ netnsPath: "/run/netns/none", device: "eth0" }),
  };
}

driverSuite(
  "fake",
  async () => {
    const host = new FakeHost();
    return {
      open: async () => createFakeDriver({ host }),
      spec: async (resources) => ({ ...fakeSpec(), resources }),
      agentAddress: () => undefined,
      async [Symbol.asyncDispose]() {},
    };
  },
  { state: NO_STATE, limits: NO_LIMITS },
);

const binDir = process.env.AENV_TEST_BIN_DIR;
if (binDir === undefined) {
  test("fake with agents", { skip: "AENV_TEST_BIN_DIR names no folder with a built envd" }, () => {});
} else {
  driverSuite("fake with agents", () => agentHarness(join(binDir, "envd")), { state: NO_STATE, limits: NO_LIMITS });
}

/** Machines are agents on loopback, each at a port of its own. */
async function agentHarness(envdPath: string): Promise<DriverHarness> {
  const host = new FakeHost();
  const ports = new Map<string, number>();
  const listenOn = ({ id }: MachineSpec): string => `127.0.0.1:${ports.get(id)}`;
  return {
    open: async () => createFakeDriver({ host, agent: { envdPath, runner: localRunner(), listenOn } }),
    async spec(resources) {
      const spec = { ...fakeSpec(), resources };
      ports.set(spec.id, await freePort());
      return spec;
    },
    agentAddress: listenOn,
    async [Symbol.asyncDispose]() {},
  };
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  server.close();
  assert.ok(typeof address === "object" && address !== null);
  return address.port;
}

describe("scripted failures of the fake driver", () => {
  test("each happens once, to the operation it is for", async () => {
    const host = new FakeHost();
    const driver = createFakeDriver({ host });
    host.failNext("boot", new Error("no room"));
    await assert.rejects(driver.boot(fakeSpec()), /no room/);
    const machine = await driver.boot(fakeSpec());
    assert.deepEqual(await driver.leftovers(), [machine.id]);
  });

  test("a failed checkpoint takes its machine along when the failure says so", async () => {
    const dir = await mkdtemp(join(tmpdir(), "aenv-fake-"));
    const host = new FakeHost();
    const driver = createFakeDriver({ host });
    const machine = await driver.boot(fakeSpec());
    host.failNext("checkpoint", new CheckpointError("disk full", true));
    await assert.rejects(machine.checkpoint(join(dir, "a"), { keepRunning: false }), /disk full/);
    host.failNext("checkpoint", new CheckpointError("gone", false));
    await assert.rejects(machine.checkpoint(join(dir, "b"), { keepRunning: false }), /gone/);
    assert.deepEqual(await machine.exited.then(({ reason, detail }) => [reason, detail]), ["crashed", "gone"]);
    await rm(dir, { recursive: true });
  });

  test("the host ends a machine, and remembers what a crash has left", async () => {
    const host = new FakeHost();
    const driver = createFakeDriver({ host });
    const machine = await driver.boot(fakeSpec());
    await host.end(machine.id, "out-of-memory");
    assert.equal((await machine.exited).reason, "out-of-memory");
    host.leave("i0-0001");
    assert.deepEqual(new Set(await driver.leftovers()), new Set([machine.id, "i0-0001"]));
    assert.equal(await driver.adopt({ ...fakeSpec(), id: "i0-0001" }), undefined);
    for (const id of await driver.leftovers()) await driver.destroy(id);
    assert.deepEqual(await driver.leftovers(), []);
  });
});
