import { existsSync, readFileSync } from "node:fs";
import { has, output, run } from "./run.ts";
import type { Step } from "./steps.ts";

/** Debian package → the program that tells, on another distribution, that the thing is there. */
const NEEDED: Readonly<Record<string, string>> = {
  "ca-certificates": "update-ca-certificates",
  "debian-archive-keyring": "mmdebstrap",
  e2fsprogs: "mke2fs",
  git: "git",
  iproute2: "ip",
  mmdebstrap: "mmdebstrap",
  nftables: "nft",
  python3: "python3",
  "python3-venv": "python3",
  "util-linux": "flock",
};

/** Fields of /etc/os-release. */
export function osRelease(): Readonly<Record<string, string>> {
  const text = existsSync("/etc/os-release") ? readFileSync("/etc/os-release", "utf8") : "";
  const fields = text.split("\n").flatMap((line) => {
    const match = /^([A-Z_]+)="?(.*?)"?$/.exec(line);
    return match?.[1] === undefined ? [] : [[match[1], match[2] ?? ""] as const];
  });
  return Object.fromEntries(fields);
}

/** Programs of the distribution that building and running need. */
export const packagesStep: Step = packagesStepFor("Debian packages", 30, NEEDED);

/** @param needed Debian package → the program that tells, on another distribution, that the thing is there */
export function packagesStepFor(title: string, estimateS: number, needed: Readonly<Record<string, string>>): Step {
  return {
    title,
    estimateS,

    async pending() {
      const missing = await missingPackages(needed);
      return missing.length === 0 ? undefined : `install ${missing.join(", ")}`;
    },

    async run() {
      const missing = await missingPackages(needed);
      if (!(await has("apt-get"))) {
        throw new Error(
          `This is not a Debian-like system (no apt-get). Install what brings these programs, then run this again: ${missing.join(", ")}`,
        );
      }
      const install = ["apt-get", "install", "--yes", "--no-install-recommends", ...missing];
      const env = { DEBIAN_FRONTEND: "noninteractive" };
      // The lists may be there and fresh enough; only when they are not does updating cost its seconds.
      if ((await output(install, { env })).code === 0) return;
      await run(["apt-get", "update"], { env });
      await run(install, { env });
    },
  };
}

async function missingPackages(needed: Readonly<Record<string, string>>): Promise<string[]> {
  if (await has("dpkg-query")) {
    const known = await output([
      "dpkg-query",
      "--show",
      // biome-ignore lint/suspicious/noTemplateCurlyInString: placeholders of dpkg-query, not ours
      "--showformat=${Package} ${db:Status-Status}\n",
      ...Object.keys(needed),
    ]);
    const installed = new Set(
      known.stdout
        .split("\n")
        .filter((line) => line.endsWith(" installed"))
        .map((line) => line.split(" ")[0]),
    );
    return Object.keys(needed).filter((name) => !installed.has(name));
  }
  const missing = new Set<string>();
  for (const program of new Set(Object.values(needed))) if (!(await has(program))) missing.add(program);
  return [...missing];
}
