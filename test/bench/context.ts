import { setTimeout as sleep } from "node:timers/promises";
import { SqliteCatalog, Templates } from "#catalog";
import type { Snapshot } from "#domain";
import { Cleanup } from "#lib/cleanup";
import { localRunner } from "#lib/spawn";
import { claimServer } from "#network";
import { dataPaths } from "../../src/config.ts";
import { startTestServer, type TestConfig, type TestServer } from "../e2e/start.ts";
import { type Census, differences, takeCensus } from "./census.ts";
import { hostMemoryKib } from "./memory.ts";
import { Product } from "./product.ts";
import { RawHost } from "./raw.ts";

/** Longer than the server's own waits before it does what has time, such as making slots. */
const STEADY_MS = 800;
const LOOK_MS = 100;
const QUIET_DEADLINE_MS = 60_000;

/** What a figure measures with. */
export interface BenchContext {
  /** How many samples to take of each side. */
  readonly samples: number;
  readonly product: Product;
  readonly raw: RawHost;
  /** Waits until work that goes on after answers is over and all that was written is on the disk. */
  quiet(): Promise<void>;
  /** Waits only for the disk. */
  sync(): Promise<void>;
  census(): Census;
  /** More of the host's memory in use than before there was a server on it: with the server's own, and the bench's. */
  nodeMib(): number;
  /** Progress, for people. */
  say(line: string): void;
}

/** A server of this checkout and a host for bare commands beside it, for all figures of one run. */
export class Bench {
  readonly #server: TestServer;
  readonly #product: Product;
  readonly #raw: RawHost;
  readonly #census: () => Census;
  readonly #hostKib: number;

  private constructor(server: TestServer, product: Product, raw: RawHost, census: () => Census, hostKib: number) {
    this.#server = server;
    this.#product = product;
    this.#raw = raw;
    this.#census = census;
    this.#hostKib = hostKib;
  }

  static async open(settings: Partial<TestConfig>): Promise<Bench> {
    await using undo = new Cleanup();
    const hostKib = hostMemoryKib().used;
    const server = await startTestServer({ settings });
    undo.add(() => server.stop());
    const raw = await RawHost.open(server, await baseSnapshot(server.dataDir));
    undo.add(() => raw.close());
    const { network } = await claimServer({ dataDir: server.dataDir, onStale: async () => {} });
    const product = new Product(server, network);
    undo.add(() => product.close());
    // What only the first sandbox makes is there before anything is counted.
    await product.kill(await product.create());
    undo.keep();
    const census = () => takeCensus({ dataDir: server.dataDir, keeperPid: server.pid("keeper"), network });
    return new Bench(server, product, raw, census, hostKib);
  }

  context(samples: number, say: (line: string) => void): BenchContext {
    return {
      samples,
      product: this.#product,
      raw: this.#raw,
      census: this.#census,
      nodeMib: () => (hostMemoryKib().used - this.#hostKib) / 1024,
      quiet: () => this.#quiet(),
      sync,
      say,
    };
  }

  /** Ends everything, also in the middle of a figure. */
  async close(): Promise<void> {
    this.#product.close();
    try {
      await this.#raw.close();
    } finally {
      await this.#server.stop();
    }
  }

  async #quiet(): Promise<void> {
    await this.#raw.settled();
    const giveUpAtMs = performance.now() + QUIET_DEADLINE_MS;
    let before = this.#census();
    for (let steadyMs = 0; steadyMs < STEADY_MS; ) {
      if (performance.now() > giveUpAtMs)
        throw new Error(`the server does not come to rest: ${JSON.stringify(before)}`);
      await sleep(LOOK_MS);
      const now = this.#census();
      steadyMs = Object.keys(differences(before, now)).length === 0 ? steadyMs + LOOK_MS : 0;
      before = now;
    }
    await sync();
  }
}

async function sync(): Promise<void> {
  await localRunner().run(["sync"]);
}

async function baseSnapshot(dataDir: string): Promise<Snapshot> {
  const catalog = new SqliteCatalog(dataPaths(dataDir).catalog);
  try {
    const builds = await new Templates(catalog, Date.now).builds();
    const snapshot = builds.find((build) => build.status === "ready")?.snapshot;
    if (snapshot === undefined) throw new Error("the test server has no template");
    return snapshot;
  } finally {
    await catalog.close();
  }
}
