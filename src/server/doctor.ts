import { localRunner } from "#lib/spawn";
import { edgePorts, loadConfig } from "../config.ts";
import { examineHost, exitCodeFor, formatChecks } from "../doctor/index.ts";

/** Exit code 0: sandboxes can run here; 1: they cannot, and the output says what to do. */
export async function run(argv: readonly string[]): Promise<number> {
  const { config, flags } = loadConfig(argv, { json: { type: "boolean" } });
  const { dataDir, binDir, runscPath, virtualization } = config;
  const checks = await examineHost({
    runner: localRunner(),
    dataDir,
    binDir,
    runscPath,
    virtualization,
    paths: config,
    ports: edgePorts(config),
  });
  process.stdout.write(flags.json === true ? `${JSON.stringify(checks, undefined, 2)}\n` : formatChecks(checks));
  return exitCodeFor(checks);
}
