import { completeConfig, edgePorts } from "../../src/config.ts";
import { examineHost, formatChecks } from "../../src/doctor/index.ts";
import { localRunner } from "../../src/lib/spawn.ts";
import type { ServerConfig } from "./server.ts";
import { progress } from "./steps.ts";

/** Says what this host lacks, and throws when sandboxes could not run on it or a port is another program's. */
export async function checkHost(wanted: ServerConfig): Promise<void> {
  const config = completeConfig({ ...wanted });
  const { dataDir, binDir, runscPath, virtualization } = config;
  const runner = localRunner(process.env.PATH);
  const checks = await progress("this host", () =>
    examineHost({ runner, dataDir, binDir, runscPath, virtualization, paths: config, ports: edgePorts(config) }),
  );
  const notOk = checks.filter(({ status }) => status !== "ok");
  const choice = checks.find(({ id, status }) => id === "virtualization" && status === "ok");
  if (choice !== undefined) process.stdout.write(`      ${choice.found}\n`);
  if (notOk.length > 0) process.stdout.write(formatChecks(notOk));
  if (notOk.some(({ status }) => status === "fail")) {
    throw new Error("Sandboxes cannot run on this host until that is fixed.");
  }
  if (notOk.some(({ id }) => id === "port")) throw new Error("Nothing was started.");
}
