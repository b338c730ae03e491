import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { cacheDir, cached, makeDir, prune } from "./cache.js";
import { goEnv, goToolchain } from "./go.ts";
import { hashTree } from "./hash.ts";
import { root } from "./node.js";
import { output, run } from "./run.ts";
import type { Step } from "./steps.ts";

/** Debian's nginx, unpacked and never installed: an installed one would start to serve. */
const unpacked = join(cacheDir(), "nginx");
const INSTALLED = "/usr/sbin/nginx";
const probeSource = join(root, "native", "internal", "edgeprobe");

/** What the edge is measured with and against. */
export const edgeBenchSteps: readonly Step[] = [
  {
    title: "nginx, to compare the edge to",
    estimateS: 5,
    withoutIt: "the figures that compare the edge to it are not measured",

    pending() {
      return Promise.resolve(nginx() === undefined ? "unpack Debian's package into the cache" : undefined);
    },

    async run() {
      await cached(unpacked, async (temp) => {
        makeDir(temp);
        // Unconfined, as the user apt else downloads as may not enter a home folder.
        const fetched = await output(["apt-get", "download", "--option=APT::Sandbox::User=root", "nginx"], {
          cwd: temp,
        });
        const deb = readdirSync(temp).find((name) => name.endsWith(".deb"));
        if (deb === undefined) throw new Error(`apt-get download nginx: ${fetched.stderr}`);
        await run(["dpkg-deb", "--extract", join(temp, deb), temp]);
      });
    },
  },
  {
    title: "probe of the edge",
    estimateS: 5,

    async pending() {
      return existsSync(await probeDir()) ? undefined : "build";
    },

    async run() {
      const env = await goEnv();
      await cached(await probeDir(), async (temp) => {
        makeDir(temp);
        const flags = ["-ldflags", "-s -w"];
        const argv = ["go", "build", "-C", join(root, "native"), ...flags, "-o", `${temp}/`, "./internal/edgeprobe"];
        await run(argv, { env, asOwner: true });
      });
      prune(join(cacheDir(), "edgeprobe"), 2);
    },
  },
];

/** Where the figures of the edge find both. */
export async function edgeBenchEnv(): Promise<Record<string, string>> {
  return { AENV_BENCH_PROBE: join(await probeDir(), "edgeprobe"), AENV_BENCH_NGINX: nginx() ?? "" };
}

function nginx(): string | undefined {
  return [INSTALLED, join(unpacked, INSTALLED)].find((path) => existsSync(path));
}

async function probeDir(): Promise<string> {
  const { version } = await goToolchain();
  const isSource = (path: string): boolean => path.endsWith(".go");
  return join(cacheDir(), "edgeprobe", hashTree(probeSource, isSource, [version, process.arch]));
}
