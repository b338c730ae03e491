import { freemem, totalmem } from "node:os";
import { join } from "node:path";
import type { Catalog } from "#catalog";
import { MIB } from "#domain";
import { connectKeeper, type Keeper } from "#lib/keeper";
import type { Logger } from "#lib/log";
import { Semaphore } from "#lib/mutex";
import { startTicks } from "#lib/proc";
import { claimServer, createSlots, removeServerNetwork } from "#network";
import {
  Background,
  Collector,
  Departures,
  Entries,
  installAgent,
  Journal,
  Ladder,
  type LadderMemory,
  NodePaths,
  Orchestrator,
  Routes,
} from "#orchestrator";
import { forwarderName } from "#proxy";
import { connectStore } from "#store";
import { Telemetry } from "#telemetry";
import { type Config, dataPaths } from "../config.ts";
import { createDriver, type DriverDeps } from "./driver.ts";
import { openSwap } from "./swap.ts";

/** What the agent of this build calls itself (`envd -version` says the same; a test compares). */
export const ENVD_VERSION = "0.6.13";

/** Of the memory that is available at the start, for what stands ready; and of all there is, what must stay available. */
const BUDGET_SHARE = 1 / 4;
const RESERVE_SHARE = 1 / 16;
const MS_PER_HOUR = 3_600_000;
/** Ready clones of one template at the most, for each restore that can go on at once: a burst of so many takes a second. */
const CLONES_PER_START = 4;

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
  const slotTools = { runner: keeper, netslotPath: join(config.binDir, "netslot") };
  const claim = await claimServer({
    dataDir: config.dataDir,
    onStale: (network) => removeServerNetwork(slotTools, network),
  });
  const driver = await createDriver(config, { index: claim.index, keeper, diskFiles: store.files, logger, ...options });
  const admission = new Semaphore(config.startsAtOnce);
  const slots = createSlots({
    ...slotTools,
    server: claim.network,
    log: logger,
    ready: config.slotsReady,
    max: config.slotsMax,
    companion: driver,
    isBusy: () => !admission.isIdle,
  });
  const routes = new Routes();
  const forwarder = await runningEdge(keeper);
  if (forwarder !== undefined) routes.attach(forwarder);
  const entries = new Entries();
  const telemetry = await Telemetry.open(paths.telemetry, Date.now);
  const launch = {
    driver,
    slots,
    store,
    paths,
    routes,
    admission,
    departures: new Departures(),
    readyTimeoutMs: config.readyTimeoutMs,
  };
  const ladder = new Ladder({
    launch: { ...launch, makeRoom: async () => false },
    logger,
    memory: ladderMemory(config),
    refillsAtOnce: Math.max(1, Math.floor(config.startsAtOnce / 4)),
    clonesMax: CLONES_PER_START * config.startsAtOnce,
  });
  const swap = await openSwap(config, data.swap, keeper, logger);
  const orchestrator = await Orchestrator.start({
    ...launch,
    makeRoom: () => ladder.makeRoom(),
    ladder,
    idleAfterMs: config.idleAfterMs === 0 ? undefined : config.idleAfterMs,
    pausedRetentionMs: config.pausedRetentionHours === 0 ? undefined : config.pausedRetentionHours * MS_PER_HOUR,
    swap: swap?.files,
    journal: new Journal(catalog),
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
      await swap?.close();
      await slots.close();
      await driver.close();
      store.close();
      await keeper.close();
    },
  };
}

function ladderMemory({ memoryBudgetMib }: Config): LadderMemory {
  const budgetBytes = memoryBudgetMib === null ? freemem() * BUDGET_SHARE : memoryBudgetMib * MIB;
  return { budgetBytes, reserveBytes: totalmem() * RESERVE_SHARE, availableBytes: freemem };
}

/** The edge that runs already, with routes of an earlier aenvd: no address is used again before it has taken in the new
 *  table. undefined: none runs. */
async function runningEdge(keeper: Keeper): Promise<string | undefined> {
  const pid = (await keeper.status()).services.find((service) => service.name === "edge")?.pid ?? 0;
  const ticks = pid === 0 ? undefined : startTicks(pid);
  return ticks === undefined ? undefined : forwarderName(pid, ticks);
}
