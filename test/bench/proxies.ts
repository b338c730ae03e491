import { readFileSync } from "node:fs";
import { Sandbox } from "e2b";
import { localRunner } from "#lib/spawn";
import { fromSetUp, until } from "../e2e/start.ts";
import type { BenchContext } from "./context.ts";
import { Nginx } from "./nginx.ts";

const SERVICE_PORT = 7000;
const ASK_TIMEOUT_MS = 120_000;
const TICKS_PER_S = 100;

/** One of the two ways to a service in a sandbox. */
export interface Front {
  readonly url: string;
  /** Headers as the probe takes them, NAME:VALUE. */
  readonly headers: readonly string[];
  readonly pid: number;
}

/** A sandbox with the probe's service in it, the edge in front of it, and nginx beside the edge. */
export class Proxies implements AsyncDisposable {
  readonly edge: Front;
  readonly nginx: Front;
  readonly #close: () => Promise<void>;

  private constructor(edge: Front, nginx: Front, close: () => Promise<void>) {
    this.edge = edge;
    this.nginx = nginx;
    this.#close = close;
  }

  /** Throws MissingError without nginx. */
  static async open({ product }: BenchContext): Promise<Proxies> {
    const sandbox = await Sandbox.create("base", { ...product.sdkOptions, timeoutMs: 1_200_000 });
    let nginx: Nginx | undefined;
    const close = async (): Promise<void> => {
      await nginx?.close();
      await sandbox.kill();
    };
    try {
      await sandbox.files.write("probe", new Blob([readFileSync(fromSetUp("AENV_BENCH_PROBE"))]));
      await sandbox.commands.run("chmod +x probe");
      await sandbox.commands.run(`exec ./probe serve :${SERVICE_PORT}`, { background: true, timeoutMs: 0 });
      const { server } = product;
      const headers = { "E2b-Sandbox-Id": sandbox.sandboxId, "E2b-Sandbox-Port": String(SERVICE_PORT) };
      await until("the probe's service", async () => (await fetch(`${server.url}/small`, { headers })).status === 200);
      nginx = await Nginx.start(`${product.slotAddress(await product.find(sandbox.sandboxId))}:${SERVICE_PORT}`);
      const lines = Object.entries(headers).map(([name, value]) => `${name}:${value}`);
      return new Proxies(
        { url: server.url, headers: lines, pid: server.pid("edge") },
        { url: nginx.url, headers: [], pid: nginx.workerPid },
        close,
      );
    } catch (error) {
      await close();
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#close();
  }
}

export interface Asked {
  /** What the probe measured. */
  readonly value: number;
  /** Seconds of processors that the proxy used meanwhile. */
  readonly cpuS: number;
}

/** Has the probe ask through a proxy. */
export async function askThrough(proxy: Front, command: "down" | "up" | "small", number: number): Promise<Asked> {
  const before = cpuS(proxy.pid);
  const argv = [fromSetUp("AENV_BENCH_PROBE"), command, proxy.url, String(number), ...proxy.headers];
  const { stdout } = await localRunner().run(argv, { timeoutMs: ASK_TIMEOUT_MS });
  const [value = Number.NaN] = Object.values(JSON.parse(new TextDecoder().decode(stdout)) as Record<string, number>);
  return { value, cpuS: cpuS(proxy.pid) - before };
}

function cpuS(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_S;
}

export const NGINX =
  "nginx, one worker, proxy_buffering off, proxy_request_buffering off, to the same sandbox's address";
