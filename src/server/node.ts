import { join } from "node:path";
import type { Catalog } from "#catalog";
import { connectKeeper, type Keeper } from "#lib/keeper";
import type { Logger } from "#lib/log";
import { Semaphore } from "#lib/mutex";
import { startTicks } from "#lib/proc";
import { claimServer, createSlots, removeServerNetwork } from "#network";
import { Background, Collector, Entries, installAgent, Journal, NodePaths, Orchestrator, Routes } from "#orchestrator";
import { forwarderName } from "#proxy";
import { connectStore } from "#store";
import { Telemetry } from "#telemetry";
import { type Config, dataPaths } from "../config.ts";
import { createDriver, type DriverDeps } from "./driver.ts";

/** What the agent of this build calls itself (`envd -version` says the same; a test compares). */
export const ENVD_VERSION = "0.6.13";

export interface StartedNode {
  readonly orchestrator: Orchestrator;
  /** The edge that ran before this server. */
  readonly forwarder: string | undefined;
  /** The most that one sandbox can have, where the driver has a limit. */
  readonly maxVcpus: number | undefined;
  close(): Promise<void>;
}

/** The node side of a server: runtimes, network, bytes and the sandboxes on them. */
export async function startNode(
  config: Config,
  catalog: Catalog,
  logger: Logger,
  options: Pick<DriverDeps, "used">,
): Promise<StartedNode> {
  const data = dataPaths(config.dataDir);
  const paths = new NodePaths(config.dataDir);
  const keeper = connectKeeper(data.keeperSocket);
  const store = connectStore(data.blobdSocket);
  const claim = await claimServer({
    dataDir: config.dataDir,
    onStale: (network) => removeServerNetwork(keeper, network),
  });
  const driver = await createDriver(config, { index: claim.index, keeper, diskFiles: store.files, logger, ...options });
  const slots = createSlots({
    runner: keeper,
    server: claim.network,
    log: logger,
    ready: config.slotsReady,
    max: config.slotsMax,
    companion: driver,
  });
  const routes = new Routes();
  const forwarder = await runningEdge(keeper);
  if (forwarder !== undefined) routes.attach(forwarder);
  const entries = new Entries();
  const telemetry = await Telemetry.open(paths.telemetry, Date.now);
  const orchestrator = await Orchestrator.start({
    driver,
    slots,
    store,
    paths,
    admission: new Semaphore(config.startsAtOnce),
    readyTimeoutMs: config.readyTimeoutMs,
    journal: new Journal(catalog),
    routes,
    logger,
    entries,
    telemetry,
    collector: new Collector({ telemetry, entries, logger }),
    background: new Background(logger),
    agentDigest: await installAgent(join(config.binDir, "envd"), paths.agents),
    envdVersion: ENVD_VERSION,
  });
  return {
    orchestrator,
    forwarder,
    maxVcpus: driver.capabilities.maxVcpus,
    async close() {
      await orchestrator.close();
      await slots.close();
      await driver.close();
      store.close();
      await keeper.close();
    },
  };
}

/** The edge that runs already, with routes of an earlier aenvd: no address is used again before it has taken in the new
 *  table. undefined: none runs. */
async function runningEdge(keeper: Keeper): Promise<string | undefined> {
  const pid = (await keeper.status()).services.find((service) => service.name === "edge")?.pid ?? 0;
  const ticks = pid === 0 ? undefined : startTicks(pid);
  return ticks === undefined ? undefined : forwarderName(pid, ticks);
}
