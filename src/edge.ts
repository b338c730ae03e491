import { PEER_HEADER } from "#api";
import { createLogger } from "#lib/log";
import { startTicks } from "#lib/proc";
import { Edge, forwarderName } from "#proxy";
import { dataPaths, loadConfig, splitListen } from "./config.ts";
import { KeeperWatch } from "./server/keeper-watch.ts";

const { config } = loadConfig(process.argv.slice(2));
const logger = createLogger(config.logLevel, (line) => process.stderr.write(line));
const paths = dataPaths(config.dataDir);
const ticks = startTicks(process.pid);
if (ticks === undefined) throw new Error("/proc does not show this process");

const edge = await Edge.start({
  ...splitListen(config.listen),
  apiSocket: paths.aenvdSocket,
  routesSocket: paths.routesSocket,
  forwarder: forwarderName(process.pid, ticks),
  peerHeader: PEER_HEADER,
  logger,
});
logger.info("edge listens", { address: config.listen, pid: process.pid });

const keeperWatch = new KeeperWatch(config, logger);

for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.once(signal, () => {
    keeperWatch.close();
    edge.close().catch((error: unknown) => logger.error("closing failed", { error }));
  });
}
