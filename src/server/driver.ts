import { join } from "node:path";
import { chooseDriver, type Driver, examineVirtualization } from "#driver";
import { createFirecrackerDriver } from "#driver/firecracker";
import { createGvisorDriver } from "#driver/gvisor";
import type { DiskFiles } from "#lib/disk-files";
import type { Keeper } from "#lib/keeper";
import type { Logger } from "#lib/log";
import { type Config, dataPaths } from "../config.ts";

export interface DriverDeps {
  /** Of this server among those of the host. */
  readonly index: number;
  readonly keeper: Keeper;
  readonly diskFiles: DiskFiles;
  readonly logger: Logger;
  /** Name of the driver that made the newest template. */
  readonly used: string | undefined;
}

/** User ids that no distribution gives to anybody (systemd calls them nobody's land), 65,536 for each server of a host. */
const FIRST_UID = 1_880_000_000;
const UIDS = 65_536;

/** The driver for this host, as configured. Errors: unavailable, when it cannot work; the hint says what to do. */
export async function createDriver(config: Config, deps: DriverDeps): Promise<Driver> {
  const { index, keeper, logger, used } = deps;
  const data = dataPaths(config.dataDir);
  const { virtualization, binDir } = config;
  const facts = await examineVirtualization({ runner: keeper, binDir, virtualization, paths: config });
  const choice = chooseDriver({ ...facts, ...(used !== undefined && { used }) });
  logger.info("driver chosen", { driver: choice.driver, reason: choice.why });
  const shared = {
    runner: keeper,
    watcher: keeper,
    stateDir: join("/run/aenv", String(index)),
    cgroupParent: join("/aenv", String(index)),
    logger,
  };
  if (choice.driver === "gvisor") {
    return createGvisorDriver({
      ...shared,
      runscPath: config.runscPath,
      sentrySavePath: join(binDir, "sentrysave"),
      machinesDir: data.machines,
      uppersDir: data.uppers,
    });
  }
  return createFirecrackerDriver({
    ...shared,
    kind: choice.kernel,
    firecrackerPath: config.firecrackerPath,
    jailerPath: config.jailerPath,
    kernelPath: choice.kernel === "pvm" ? (config.pvmKernelPath ?? "") : config.guestKernelPath,
    initrdPath: config.guestInitrdPath,
    kernelArgs: config.guestKernelArgs,
    diskFiles: deps.diskFiles,
    dir: data.firecracker,
    firstUid: FIRST_UID + index * UIDS,
  });
}
