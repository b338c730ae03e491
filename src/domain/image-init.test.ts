import assert from "node:assert/strict";
import { test } from "node:test";
import { ownInit } from "./image-init.ts";

test("an image whose command is an init has one of its own, with its arguments", () => {
  assert.deepEqual(ownInit({ entrypoint: [], cmd: ["/sbin/init"] }), ["/sbin/init"]);
  assert.deepEqual(ownInit({ entrypoint: ["/init"], cmd: ["nginx", "-g", "daemon off;"] }), [
    "/init",
    "nginx",
    "-g",
    "daemon off;",
  ]);
});

test("an image that runs a program, also through a wrapper, has none", () => {
  for (const [entrypoint, cmd] of [
    [[], []],
    [[], ["bash"]],
    [["/usr/bin/tini", "--"], ["/sbin/init"]],
    [["/app/init"], []],
  ] as const) {
    assert.equal(ownInit({ entrypoint, cmd }), undefined);
  }
});
