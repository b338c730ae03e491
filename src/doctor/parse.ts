import type { CgroupFacts } from "./facts.ts";

/** What /proc and the tools print, read. All pure; text that is missing or strange yields the empty answer. */

/** From /proc/self/mountinfo, and the root's cgroup.controllers where it is there. */
export function cgroupFacts(mountinfo: string, unifiedControllers: string): CgroupFacts {
  const unified = unifiedControllers.split(/\s+/).filter((word) => word !== "");
  if (unified.length > 0) return { version: "v2", controllers: unified };
  const v1 = mountinfo.split("\n").flatMap((line) => {
    const [, after = ""] = line.split(" - ");
    const [type, , options = ""] = after.split(" ");
    return type === "cgroup" ? options.split(",").filter((option) => option !== "rw" && option !== "ro") : [];
  });
  return { version: v1.length > 0 ? "v1" : "none", controllers: [...new Set(v1)] };
}

/** MemAvailable of /proc/meminfo. */
export function availableMemoryBytes(meminfo: string): number {
  return Number(/^MemAvailable:\s+(\d+) kB$/m.exec(meminfo)?.[1] ?? 0) * 1024;
}

/** Hard limit of open files in /proc/PID/limits. */
export function openFilesLimit(limits: string): number {
  const hard = /^Max open files\s+\S+\s+(\S+)/m.exec(limits)?.[1];
  return hard === "unlimited" ? Number.MAX_SAFE_INTEGER : Number(hard ?? 0);
}

/** True when /proc/net/tcp and tcp6 show a listener at the port. */
export function isListening(procNetTcp: string, port: number): boolean {
  const LISTEN = "0A";
  const hex = port.toString(16).toUpperCase().padStart(4, "0");
  return procNetTcp.split("\n").some((line) => {
    const [, local = "", , state] = line.trim().split(/\s+/);
    return state === LISTEN && local.endsWith(`:${hex}`);
  });
}

interface NftChain {
  readonly family: string;
  readonly table: string;
  readonly name: string;
  readonly hook?: string;
  readonly policy?: string;
}

/** Chains of `nft --json list ruleset` that drop forwarded packets by default and are not ours. */
export function droppingChains(rulesetJson: string): readonly string[] {
  const ruleset = parseJson<{ nftables?: { chain?: NftChain }[] }>(rulesetJson)?.nftables ?? [];
  return ruleset
    .flatMap(({ chain }) => (chain === undefined ? [] : [chain]))
    .filter(({ hook, policy, table }) => hook === "forward" && policy === "drop" && !isOurs(table))
    .map(({ family, table, name }) => `${family} ${table} ${name}`);
}

interface IpRoute {
  readonly dst?: string;
  readonly dev?: string;
}

/** Routes of `ip -json route` into 198.18.0.0/15 over links that are not ours. A server's own routes over no link or `lo` (it
 *  refuses there what no slot has) are no hindrance either. */
export function foreignRoutes(routesJson: string): readonly string[] {
  const routes = parseJson<IpRoute[]>(routesJson) ?? [];
  return routes
    .filter(({ dst, dev = "lo" }) => dst !== undefined && /^198\.1[89]\./.test(dst) && dev !== "lo" && !isOurs(dev))
    .map(({ dst, dev }) => `${dst} on ${dev}`);
}

/** Tables and links of ours begin with `ae` and the number of a server. */
function isOurs(name: string): boolean {
  return /^ae(nv|\d)/.test(name);
}

function parseJson<T>(json: string): T | undefined {
  try {
    return JSON.parse(json) as T;
  } catch {
    return undefined;
  }
}
