import { examineHost, formatChecks } from "../../src/doctor/index.ts";
import { localRunner } from "../../src/lib/spawn.ts";
import type { ServerConfig } from "./server.ts";
import { progress } from "./steps.ts";

/** Says what this host lacks, and throws when sandboxes could not run on it or the port is another program's. */
export async function checkHost({ listen, dataDir, runscPath }: ServerConfig): Promise<void> {
  const port = Number(listen.split(":").at(-1));
  const runner = localRunner(process.env.PATH);
  const checks = await progress("this host", () => examineHost({ runner, dataDir, runscPath, port }));
  const notOk = checks.filter(({ status }) => status !== "ok");
  if (notOk.length > 0) process.stdout.write(formatChecks(notOk));
  if (notOk.some(({ status }) => status === "fail")) {
    throw new Error("Sandboxes cannot run on this host until that is fixed.");
  }
  if (notOk.some(({ id }) => id === "port")) throw new Error("Nothing was started.");
}
