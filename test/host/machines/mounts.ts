import { readFileSync } from "node:fs";
import { localRunner } from "#lib/spawn";

/** Unmounts what is mounted at a path or below it. */
export async function unmountBelow(path: string): Promise<void> {
  const mounts = readFileSync("/proc/self/mountinfo", "utf8")
    .split("\n")
    .map((line) => line.split(" ")[4] ?? "")
    .filter((point) => point === path || point.startsWith(`${path}/`));
  for (const point of mounts.reverse()) await localRunner().run(["umount", point]);
}
