import assert from "node:assert/strict";
import {
  chownSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, test } from "node:test";
import { takeOver } from "./checkpoint.ts";

const UID = 1_880_000_007;
const skip = process.getuid?.() !== 0 && "needs root";

describe("what is taken over from a jailed process", { skip }, () => {
  let dir = "";
  let secret = "";
  let source = "";
  let target = "";

  beforeEach(() => {
    dir = mkdtempSync(join(tmpdir(), "aenv-take-"));
    for (const name of ["run", "checkpoint"]) mkdirSync(join(dir, name));
    secret = join(dir, "secret");
    writeFileSync(secret, "secret", { mode: 0o600 });
    source = join(dir, "run", "state");
    target = join(dir, "checkpoint", "state");
  });
  afterEach(() => rmSync(dir, { recursive: true }));

  test("is its file, which then belongs to root and cannot be written", async () => {
    writeFileSync(source, "state", { mode: 0o600 });
    chownSync(source, UID, UID);
    await takeOver(source, target, { uid: UID, sizeBytes: 5 });
    const { uid, mode, nlink } = statSync(target);
    assert.deepEqual([uid, mode & 0o777, nlink, readFileSync(target, "utf8")], [0, 0o444, 1, "state"]);
  });

  for (const [what, make] of Object.entries({
    "a link to a file of the host": () => symlinkSync(secret, source),
    "another name of a file of the host": () => linkSync(secret, source),
    "a file of another size": () => {
      writeFileSync(source, "longer than was asked for");
      chownSync(source, UID, UID);
    },
    "a folder": () => {
      mkdirSync(join(source, "inner"), { recursive: true });
      chownSync(source, UID, UID);
    },
    nothing: () => {},
  })) {
    test(`is not ${what}`, async () => {
      make();
      await assert.rejects(takeOver(source, target, { uid: UID, sizeBytes: 5 }));
      assert.deepEqual(readdirSync(join(dir, "checkpoint")), []);
      const { uid, mode } = statSync(secret);
      assert.deepEqual([uid, mode & 0o777, readFileSync(secret, "utf8")], [0, 0o600, "secret"]);
    });
  }
});
