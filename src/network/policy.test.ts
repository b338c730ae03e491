import assert from "node:assert/strict";
import { BlockList } from "node:net";
import { test } from "node:test";
import { serverNetwork, slotNetwork } from "./addresses.ts";
import { edgeRules, hostRules, NEVER_REACHABLE } from "./policy.ts";

const server = serverNetwork(3);
const slot = slotNetwork(server, 7);

function chain(rules: string, name: string): string[] {
  const body = new RegExp(`chain ${name} \\{\\n([^}]*(?:\\{[^}]*\\}[^}]*)*?)\\n {2}\\}`).exec(rules)?.[1];
  assert.ok(body !== undefined, `no chain ${name}`);
  return body.split("\n").map((line) => line.trim());
}

test("what is never reachable covers metadata, private, shared, own and multicast addresses and no public one", () => {
  const never = new BlockList();
  for (const cidr of NEVER_REACHABLE) {
    const [network = "", length] = cidr.split("/");
    never.addSubnet(network, Number(length));
  }
  const inside = [
    "169.254.169.254",
    "10.1.2.3",
    "172.31.0.1",
    "192.168.1.1",
    "100.100.100.200",
    "127.0.0.1",
    "0.0.0.0",
  ];
  inside.push(server.gateway, slot.hostAddress, "198.19.255.254", "192.0.0.192", "224.0.0.251", "255.255.255.255");
  for (const address of inside) assert.ok(never.check(address), address);
  for (const address of ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "198.20.0.1", "223.255.255.255"]) {
    assert.ok(!never.check(address), address);
  }
});

test("a policy decides what may leave", () => {
  assert.deepEqual(chain(edgeRules(server, { internet: true }), "egress"), [
    ...NEVER_REACHABLE.map((net) => `ip daddr ${net} goto refuse`),
    "goto leave",
  ]);
  assert.deepEqual(chain(edgeRules(server, { internet: false }), "egress"), ["goto refuse"]);
});

test("only root's programs on the host open connections to slots", () => {
  const [hook, ...rules] = chain(hostRules(server), "from_host");
  assert.match(hook ?? "", /hook output/);
  assert.deepEqual(rules, ['oifname "ae3h*" meta skuid != 0 goto refuse']);
});

test("the host's table is replaced in the transaction that fills it, and a server touches only its own", () => {
  assert.ok(hostRules(server).startsWith("table inet ae3\ndelete table inet ae3\ntable inet ae3 {\n"));
  const links = [...hostRules(server).matchAll(/[io]ifname (?:!= )?"([^"]+)"/g)].map((match) => match[1]);
  assert.deepEqual([...new Set(links)], ["ae3h*"]);
});
