import assert from "node:assert/strict";
import { test } from "node:test";
import { MAX_SERVERS, MAX_SLOTS, serverNetwork, slotNetwork, slotOfName } from "./addresses.ts";

test("servers get blocks of 198.18.0.0/15 that follow each other, up to its end", () => {
  assert.deepEqual(serverNetwork(0), { index: 0, prefix: "ae0", block: "198.18.0.0/21", gateway: "198.18.0.1" });
  assert.equal(serverNetwork(31).block, "198.18.248.0/21");
  assert.equal(serverNetwork(32).block, "198.19.0.0/21");
  const last = serverNetwork(MAX_SERVERS - 1);
  assert.equal(last.gateway, "198.19.248.1");
  assert.equal(slotNetwork(last, MAX_SLOTS - 1).hostAddress, "198.19.255.254");
  assert.throws(() => serverNetwork(MAX_SERVERS), RangeError);
  assert.throws(() => slotNetwork(last, MAX_SLOTS), RangeError);
});

test("a slot's names fit the kernel and lead back to it, and only for its own server", () => {
  const server = serverNetwork(63);
  const slot = slotNetwork(server, MAX_SLOTS - 1);
  assert.ok(slot.hostLink.length <= 15);
  for (const name of [slot.hostLink, slot.sandboxNetns, slot.edgeNetns]) {
    assert.equal(slotOfName(server, name), MAX_SLOTS - 1);
    assert.equal(slotOfName(serverNetwork(6), name), undefined);
  }
  for (const name of ["ae63", "ae63h", "ae63h01", "ae63x1", "ae63h99999", "ae63-s1x", "eth0"]) {
    assert.equal(slotOfName(server, name), undefined, name);
  }
});
