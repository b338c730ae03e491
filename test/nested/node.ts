import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { MemoryCatalog } from "#catalog";
import type { Image, SandboxId } from "#domain";
import { AGENT_PORT } from "#guest";
import { connectKeeper } from "#lib/keeper";
import { createLogger, writeStderr } from "#lib/log";
import { localRunner } from "#lib/spawn";
import { claimServer, removeServerNetwork } from "#network";
import { IMPORT_LEASE } from "#orchestrator";
import { connectStore } from "#store";
import { type Config, completeConfig, dataPaths } from "../../src/config.ts";
import { patience, TestAgent } from "../../src/driver/testing/agent.ts";
import { type StartedNode, startNode } from "../../src/server/node.ts";
import { fromEnvironment, slotTools } from "../host/machines/host.ts";
import { unmountBelow } from "../host/machines/mounts.ts";
import { makeTree } from "./init-image.ts";
import { QUICK_GUEST } from "./linux-bench.ts";

const START_TIMEOUT_MS = 60_000;

/**
 * The node side of a server as the product puts it together, with Firecracker: keeper and blobd are processes of their own, the
 * orchestrator runs in this one. There is no edge: tests go to the agents, and wake what stands still themselves.
 */
export class TestNode implements AsyncDisposable {
  readonly config: Config;
  readonly #keeper: ChildProcess;
  readonly #node: StartedNode;

  private constructor(config: Config, keeper: ChildProcess, node: StartedNode) {
    this.config = config;
    this.#keeper = keeper;
    this.#node = node;
  }

  static async start(settings: Partial<Config>): Promise<TestNode> {
    const dataDir = await mkdtemp(join(tmpdir(), "aenv-node-"));
    const config = completeConfig({
      dataDir,
      binDir: fromEnvironment("AENV_TEST_BIN_DIR"),
      virtualization: "kvm",
      firecrackerPath: fromEnvironment("AENV_TEST_FIRECRACKER"),
      jailerPath: fromEnvironment("AENV_TEST_JAILER"),
      guestKernelPath: fromEnvironment("AENV_TEST_GUEST_KERNEL"),
      guestInitrdPath: fromEnvironment("AENV_TEST_SMALL_INITRD"),
      guestKernelArgs: QUICK_GUEST,
      readyTimeoutMs: patience(30_000),
      ...settings,
    });
    const keeper = await startKeeper(config);
    const logger = createLogger("warn", writeStderr);
    return new TestNode(config, keeper, await startNode(config, new MemoryCatalog(), logger, { used: undefined }));
  }

  get orchestrator(): StartedNode["orchestrator"] {
    return this.#node.orchestrator;
  }

  /** A small image of BusyBox, as `aenvd import` takes one in. */
  async importImage(): Promise<Image> {
    const [tree, tar] = [join(this.config.dataDir, "image"), join(this.config.dataDir, "image.tar")];
    makeTree(tree);
    await localRunner().run(["tar", "--create", "--file", tar, "--directory", tree, "."]);
    const store = connectStore(dataPaths(this.config.dataDir).blobdSocket);
    try {
      const config = { env: {}, entrypoint: [], cmd: [], user: "root", workingDir: "" };
      return await store.importRootfsTar(tar, config, `${IMPORT_LEASE}test`);
    } finally {
      store.close();
    }
  }

  /** The agent of a sandbox that runs, which is awake then. */
  async agentOf(id: SandboxId): Promise<TestAgent> {
    if (!(await this.orchestrator.wake(id))) throw new Error(`${id} is paused`);
    const address = this.orchestrator.routes.get(id)?.address;
    if (address === undefined) throw new Error(`nothing leads to ${id}`);
    return new TestAgent(`${address}:${AGENT_PORT}`);
  }

  /** What there is of sandboxes and snapshots, on the host and in the records; empty when nothing is left. */
  async remains(): Promise<Record<string, readonly string[]>> {
    const { dataDir } = this.config;
    const store = connectStore(dataPaths(dataDir).blobdSocket);
    const leases = (await store.leases()).filter((lease) => !lease.startsWith(IMPORT_LEASE));
    store.close();
    const { slotsFree, slotsTotal } = this.orchestrator.stats();
    const all = {
      sandboxes: this.orchestrator.list().map(({ id }) => id),
      routes: this.orchestrator.routes.snapshot().routes.map(({ sandboxId }) => sandboxId),
      machines: readdirSync(join(dataPaths(dataDir).firecracker, "machines")),
      checkpoints: readdirSync(join(dataDir, "checkpoints")),
      snapshots: readdirSync(join(dataDir, "snapshots")),
      slots: slotsFree === slotsTotal ? [] : [`${slotsTotal - slotsFree} of ${slotsTotal} are held`],
      leases,
    };
    return Object.fromEntries(Object.entries(all).filter(([, items]) => items.length > 0));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const { dataDir } = this.config;
    for (const { id } of this.orchestrator.list()) await this.orchestrator.kill(id);
    await this.#node.close();
    this.#keeper.kill("SIGTERM");
    if (this.#keeper.exitCode === null) await once(this.#keeper, "exit");
    const claim = await claimServer({ dataDir, onStale: async () => {} });
    await removeServerNetwork(slotTools(), claim.network);
    await claim.release();
    // Images stay mounted without blobd.
    await unmountBelow(dataDir);
    await rm(dataDir, { recursive: true });
  }
}

/** With blobd as its one service. */
async function startKeeper({ dataDir, binDir }: Config): Promise<ChildProcess> {
  const paths = dataPaths(dataDir);
  for (const dir of [paths.run, paths.log, paths.blobs]) mkdirSync(dir, { recursive: true, mode: 0o700 });
  const blobd = {
    name: "blobd",
    argv: [join(binDir, "blobd"), "-data", paths.blobs, "-socket", paths.blobdSocket],
    logFile: join(paths.log, "blobd.log"),
    pidFile: join(paths.run, "blobd.pid"),
  };
  const file = join(dataDir, "keeper.json");
  const places = { socket: paths.keeperSocket, runDir: paths.run, lockFile: join(paths.run, "keeper.lock") };
  writeFileSync(file, JSON.stringify({ ...places, version: "test", services: [blobd] }));
  const child = spawn(join(binDir, "keeper"), ["-config", file], { stdio: ["ignore", "ignore", "inherit"] });
  const [keeper, store] = [connectKeeper(paths.keeperSocket), connectStore(paths.blobdSocket)];
  const giveUpAtMs = performance.now() + START_TIMEOUT_MS;
  for (;;) {
    try {
      await keeper.status();
      await store.leases();
      break;
    } catch (error) {
      if (child.exitCode !== null || performance.now() > giveUpAtMs) throw error;
      await sleep(50);
    }
  }
  await keeper.close();
  store.close();
  return child;
}
