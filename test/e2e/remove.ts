import { readdirSync, rmdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { claimServer, removeServerNetwork } from "#network";
import type { Api } from "../../scripts/setup/api.ts";
import { type DataDir, keeperProcess, processOf, SERVICES } from "../../scripts/setup/data-dir.ts";
import { dataPaths } from "../../src/config.ts";
import { slotTools } from "../host/machines/host.ts";
import { unmountBelow } from "../host/machines/mounts.ts";
import { removeSwapFiles } from "../host/swap-files.ts";

/** Ends a server for good: its sandboxes, its processes, and everything it made on the host outside its data folder. */
export async function removeServer(data: DataDir, api: Api): Promise<void> {
  for (const state of ["running", "paused"] as const) {
    for (const { sandboxID } of await api.sandboxes(state)) await api.call("DELETE", `/sandboxes/${sandboxID}`);
  }
  const keeper = keeperProcess(data);
  if (keeper !== undefined) process.kill(keeper.pid, "SIGTERM");
  const isUp = (): boolean =>
    keeperProcess(data) !== undefined || SERVICES.some((name) => processOf(data.pidFile(name), [data.path]));
  for (let tries = 0; isUp(); tries += 1) {
    if (tries > 300) throw new Error(`the server of ${data.path} does not stop`);
    await sleep(100);
  }
  const claim = await claimServer({ dataDir: data.path, onStale: async () => {} });
  await removeServerNetwork(slotTools(), claim.network);
  await removeSwapFiles(dataPaths(data.path).swap);
  await unmountBelow(data.path);
  removeCgroups(claim.index);
  await unmountBelow(join("/run/aenv", String(claim.index)));
  rmSync(join("/run/aenv", String(claim.index)), { recursive: true, force: true });
  await claim.release();
}

function removeCgroups(index: number): void {
  for (const controller of readdirSync("/sys/fs/cgroup", { withFileTypes: true })) {
    if (!controller.isDirectory()) continue;
    try {
      rmdirSync(join("/sys/fs/cgroup", controller.name, "aenv", String(index)));
    } catch {
      // Not there in this hierarchy.
    }
  }
}
