import { readFileSync, statfsSync } from "node:fs";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { AenvError, type NetworkPolicy } from "#domain";
import { isMissing } from "#lib/files";
import type { CommandRunner } from "#lib/run";
import { type ServerNetwork, slotNetwork, slotOfName } from "./addresses.ts";
import { edgeLines, hostLines, hostRouteLines, SANDBOX_LINES, slotLinkLines, unhostLines } from "./links.ts";
import { DEFAULT_POLICY, edgeRules, egressUpdate, hostRules, removeHostRules } from "./policy.ts";

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
  /** Makes a slot of which nothing is there, with the default policy. On error parts may be left. */
  make(index: number): Promise<void>;
  /** Removes whatever there is of these slots. Processes still inside keep a network that leads nowhere. */
  remove(indexes: readonly number[]): Promise<void>;
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

/** The real thing: `ip` and `nft`, five processes and about 30 ms to make a slot, one and about 15 ms to remove it. */
export class NetnsWiring implements Wiring {
  readonly #runner: CommandRunner;
  readonly #server: ServerNetwork;
  readonly mtuBytes: number;

  constructor(runner: CommandRunner, server: ServerNetwork) {
    this.#runner = runner;
    this.#server = server;
    this.mtuBytes = uplinkMtuBytes();
  }

  async prepareHost(): Promise<void> {
    await enableForwarding();
    await this.#nft(hostRules(this.#server));
    await this.#ip(hostLines(this.#server));
  }

  async clearHost(): Promise<void> {
    await this.#nft(removeHostRules(this.#server));
    // Each of the two may be gone already; the next one is to be removed all the same.
    await this.#runner.run(["ip", "-force", "-batch", "-"], {
      stdin: `${unhostLines(this.#server).join("\n")}\n`,
      check: false,
      timeoutMs: COMMAND_TIMEOUT_MS,
    });
  }

  async make(index: number): Promise<void> {
    const slot = slotNetwork(this.#server, index);
    const edge = netnsPath(slot.edgeNetns);
    await this.#ip([
      `netns add ${slot.sandboxNetns}`,
      `netns add ${slot.edgeNetns}`,
      ...slotLinkLines(this.#server, slot, this.mtuBytes),
    ]);
    // The rules are in place before any link of the edge is up.
    await Promise.all([this.#nft(edgeRules(this.#server, slot, DEFAULT_POLICY), edge), this.#forwardInside(edge)]);
    await Promise.all([
      this.#ip(edgeLines(this.#server, slot), edge),
      this.#ip(SANDBOX_LINES, netnsPath(slot.sandboxNetns)),
    ]);
  }

  async remove(indexes: readonly number[]): Promise<void> {
    const [namespaces, links] = await Promise.all([listNamespaces(), listLinks()]);
    const lines = indexes.flatMap((index) => {
      const slot = slotNetwork(this.#server, index);
      // The link goes first and by name: the kernel takes down a namespace's own links some time later, and until then
      // the name is taken on the host.
      return [
        ...(links.has(slot.hostLink) ? [`link del ${slot.hostLink}`] : []),
        ...[slot.sandboxNetns, slot.edgeNetns]
          .filter((name) => namespaces.has(name))
          .map((name) => `netns del ${name}`),
      ];
    });
    if (lines.length > 0) await this.#ip(lines);
  }

  async setPolicy(index: number, policy: NetworkPolicy): Promise<void> {
    await this.#nft(egressUpdate(policy), netnsPath(slotNetwork(this.#server, index).edgeNetns));
  }

  async adopt(index: number, policy: NetworkPolicy): Promise<void> {
    const slot = slotNetwork(this.#server, index);
    await this.#nft(edgeRules(this.#server, slot, policy), netnsPath(slot.edgeNetns));
    await this.#ip(hostRouteLines(this.#server, slot));
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

  async #ip(lines: readonly string[], path?: string): Promise<void> {
    await this.#run(["ip", "-batch", "-"], `${lines.join("\n")}\n`, path);
  }

  async #nft(text: string, path?: string): Promise<void> {
    await this.#run(["nft", "-f", "-"], text, path);
  }

  /** /proc/sys/net shows the namespace of the process that opens it, so this needs a process inside. */
  async #forwardInside(path: string): Promise<void> {
    await this.#run(["tee", IP_FORWARD], "1\n", path);
  }

  async #run(argv: readonly string[], stdin: string, path: string | undefined): Promise<void> {
    const inside = path === undefined ? {} : { netnsPath: path };
    await this.#runner.run(argv, { stdin, timeoutMs: COMMAND_TIMEOUT_MS, ...inside });
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
