import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { ServerDouble } from "./server.ts";

const binDir = process.env.AENV_TEST_BIN_DIR;

/** False, or why tests with the real agent cannot be done here. */
export const NO_AGENT: false | string =
  binDir === undefined ? "needs AENV_TEST_BIN_DIR, the folder of a built envd" : false;

/** A server double in front of the real agent, which runs as a plain process of this machine. */
export async function withRealAgent(): Promise<ServerDouble & AsyncDisposable> {
  const agent = spawn(join(binDir ?? "", "envd"), ["-listen", "127.0.0.1:0"], { stdio: ["ignore", "ignore", "pipe"] });
  const [line] = (await once(createInterface(agent.stderr), "line")) as [string];
  const server = await ServerDouble.start({ agentUrl: `http://${line.split(" ").at(-1)}` });
  const close = server[Symbol.asyncDispose].bind(server);
  server[Symbol.asyncDispose] = async () => {
    await close();
    agent.kill();
    await once(agent, "exit");
  };
  return server;
}
