import { readFileSync, statfsSync } from "node:fs";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { AenvError, type NetworkPolicy } from "#domain";
import { isMissing } from "#lib/files";
import type { CommandRunner } from "#lib/run";
import { type ServerNetwork, slotNetwork, slotOfName } from "./addresses.ts";
import { adoptionPlan, removalPlan, sharedInterface, slotsPlan } from "./links.ts";
import { applyPlan, compileRules, type SlotTools } from "./netslot.ts";
import { DEFAULT_POLICY, edgeRules, hostRules, removeHostRules } from "./policy.ts";

/**
 * What the pool of slots asks of the operating system. Slots are named by index; every call may be repeated.
 */
export interface Wiring {
  /** Of every link of a slot. */
  readonly mtuBytes: number;
  /** Makes what all slots share on the host, or brings it up to date in one step: flows of held slots go on. */
  prepareHost(): Promise<void>;
  /** Undoes prepareHost. Leaves IPv4 forwarding on: others may rely on it by now. */
  clearHost(): Promise<void>;
  /** Removes whatever there is of some slots, then makes others of which nothing is there, with the default policy. Processes
   *  still inside of those removed keep a network that leads nowhere. On error parts of any of them may be left. */
  renew(removed: readonly number[], made: readonly number[]): Promise<void>;
  setPolicy(index: number, policy: NetworkPolicy): Promise<void>;
  /** Brings a slot's route and rules up to date under its sandbox. Precondition: the slot is whole. */
  adopt(index: number, policy: NetworkPolicy): Promise<void>;
  /** Which slots anything is left of, and whether all parts are there. */
  inspect(): Promise<ReadonlyMap<number, "whole" | "broken">>;
}

const NETNS_DIR = "/run/netns";
const IP_FORWARD = "/proc/sys/net/ipv4/ip_forward";
const NSFS_MAGIC = 0x6e736673;
const COMMAND_TIMEOUT_MS = 20_000;

/** Path of a named namespace. */
export function netnsPath(name: string): string {
  return join(NETNS_DIR, name);
}

/** The real thing: a process of `netslot` for each change, and `nft` for the host's rules. */
export class NetnsWiring implements Wiring {
  readonly #tools: SlotTools;
  readonly #server: ServerNetwork;
  /** Compiled rules of edges, by whether they let out. */
  readonly #tables = new Map<boolean, Promise<string>>();
  readonly mtuBytes: number;

  constructor(tools: SlotTools, server: ServerNetwork) {
    this.#tools = tools;
    this.#server = server;
    this.mtuBytes = uplinkMtuBytes();
  }

  async prepareHost(): Promise<void> {
    await enableForwarding();
    await this.#nft(hostRules(this.#server));
    await applyPlan(this.#tools, { interfaces: [sharedInterface(this.#server)] });
  }

  async clearHost(): Promise<void> {
    await this.#nft(removeHostRules(this.#server));
    await applyPlan(this.#tools, { remove: { interfaces: [sharedInterface(this.#server)] } });
  }

  async renew(removed: readonly number[], made: readonly number[]): Promise<void> {
    if (removed.length + made.length === 0) return;
    const tables = made.length === 0 ? "" : await this.#compiled(DEFAULT_POLICY);
    const slot = (index: number) => slotNetwork(this.#server, index);
    await applyPlan(this.#tools, {
      ...removalPlan(removed.map(slot)),
      ...slotsPlan(this.#server, made.map(slot), this.mtuBytes, tables),
    });
  }

  async setPolicy(index: number, policy: NetworkPolicy): Promise<void> {
    const tables = await this.#compiled(policy);
    const { edgeNetns } = slotNetwork(this.#server, index);
    await applyPlan(this.#tools, { rules: [{ namespaces: [edgeNetns], tables }] });
  }

  async adopt(index: number, policy: NetworkPolicy): Promise<void> {
    const tables = await this.#compiled(policy);
    await applyPlan(this.#tools, adoptionPlan(this.#server, slotNetwork(this.#server, index), tables));
  }

  async inspect(): Promise<ReadonlyMap<number, "whole" | "broken">> {
    const [namespaces, links] = await Promise.all([listNamespaces(), listLinks()]);
    const found = new Map<number, "whole" | "broken">();
    for (const name of [...namespaces, ...links]) {
      const index = slotOfName(this.#server, name);
      if (index === undefined || found.has(index)) continue;
      const slot = slotNetwork(this.#server, index);
      const whole = links.has(slot.hostLink) && isNamespace(slot.sandboxNetns) && isNamespace(slot.edgeNetns);
      found.set(index, whole ? "whole" : "broken");
    }
    return found;
  }

  async #nft(text: string): Promise<void> {
    await this.#tools.runner.run(["nft", "-f", "-"], { stdin: text, timeoutMs: COMMAND_TIMEOUT_MS });
  }

  /** Once for each policy; again when it failed. */
  async #compiled(policy: NetworkPolicy): Promise<string> {
    const known = this.#tables.get(policy.internet);
    if (known !== undefined) return await known;
    const compiling = compileRules(this.#tools, edgeRules(this.#server, policy));
    this.#tables.set(policy.internet, compiling);
    compiling.catch(() => this.#tables.delete(policy.internet));
    return await compiling;
  }
}

/**
 * Firewall chains of others on this host that drop what is forwarded by default (Docker's and ufw's do), as
 * `family table chain`. A server's own rules cannot overrule them: while there are any, sandboxes reach the internet only
 * if those firewalls accept forwarding from and to the links `ae<N>h…`.
 */
export async function forwardingDroppedBy(runner: CommandRunner): Promise<string[]> {
  const { stdout } = await runner.run(["nft", "-j", "list", "chains"], { timeoutMs: COMMAND_TIMEOUT_MS });
  const listed = JSON.parse(new TextDecoder().decode(stdout)) as { nftables: { chain?: NftChain }[] };
  return listed.nftables
    .flatMap(({ chain }) => (chain?.hook === "forward" && chain.policy === "drop" ? [chain] : []))
    .map((chain) => `${chain.family} ${chain.table} ${chain.name}`);
}

interface NftChain {
  readonly family: string;
  readonly table: string;
  readonly name: string;
  readonly hook?: string;
  readonly policy?: string;
}

async function enableForwarding(): Promise<void> {
  // Written only when it is off: a change resets the host's other IPv4 settings to those of a router.
  if ((await readFile(IP_FORWARD, "utf8")).trim() !== "0") return;
  try {
    await writeFile(IP_FORWARD, "1\n");
  } catch (cause) {
    throw new AenvError("unavailable", `cannot switch on IPv4 forwarding (${IP_FORWARD})`, {
      cause,
      hint: "run as root with a writable /proc/sys, or switch it on beforehand: sysctl -w net.ipv4.ip_forward=1",
    });
  }
}

async function listNamespaces(): Promise<Set<string>> {
  try {
    return new Set(await readdir(NETNS_DIR));
  } catch (error) {
    if (isMissing(error)) return new Set();
    throw error;
  }
}

async function listLinks(): Promise<Set<string>> {
  const names = (await readFile("/proc/net/dev", "utf8")).split("\n").slice(2);
  return new Set(names.map((line) => line.slice(0, line.indexOf(":")).trim()));
}

/** False for the plain file that is left when a namespace was half made, or its mount has gone. */
function isNamespace(name: string): boolean {
  try {
    return statfsSync(netnsPath(name)).type === NSFS_MAGIC;
  } catch (error) {
    if (isMissing(error)) return false;
    throw error;
  }
}

/** MTU for slot links: that of the link the default route leaves by, so that sandboxes need no path discovery for the
 *  first hop; never more than Ethernet's. */
function uplinkMtuBytes(): number {
  const routes = readFileSync("/proc/net/route", "utf8").split("\n").slice(1);
  const uplink = routes
    .map((line) => line.split("\t"))
    .find((fields) => fields[1] === "00000000" && fields[7] === "00000000");
  try {
    return Math.min(1500, Number(readFileSync(`/sys/class/net/${uplink?.[0] ?? "lo"}/mtu`, "utf8")));
  } catch (error) {
    if (isMissing(error)) return 1500;
    throw error;
  }
}
