import assert from "node:assert/strict";
import { test } from "node:test";
import { cpioArchive } from "./cpio.ts";

const archive = cpioArchive([
  { path: "dev", kind: "directory" },
  { path: "dev/console", kind: "device", mode: 0o600, major: 5, minor: 1 },
  { path: "init", kind: "file", mode: 0o755, data: Buffer.from("#!/bin/sh") },
  { path: "empty", kind: "file", mode: 0o644, data: Buffer.alloc(0) },
]);

interface Read {
  readonly path: string;
  readonly mode: string;
  readonly device: string;
  readonly data: string;
}

/** Reads as the kernel does: each header and each file starts at a multiple of four. */
function read(archive: Buffer): Read[] {
  const found: Read[] = [];
  for (let at = 0; at < archive.length; ) {
    assert.equal(archive.toString("latin1", at, at + 6), "070701");
    const field = (index: number): number =>
      Number.parseInt(archive.toString("latin1", at + 6 + 8 * index, at + 14 + 8 * index), 16);
    const [mode, size, major, minor, nameBytes] = [field(1), field(6), field(9), field(10), field(11)];
    const path = archive.toString("utf8", at + 110, at + 110 + nameBytes - 1);
    const dataAt = (at + 110 + nameBytes + 3) & ~3;
    const data = archive.toString("utf8", dataAt, dataAt + size);
    found.push({ path, mode: mode.toString(8), device: `${major}:${minor}`, data });
    at = (dataAt + size + 3) & ~3;
  }
  return found;
}

test("an archive holds folders, devices and files, and ends with its trailer", () => {
  assert.deepEqual(read(archive), [
    { path: "dev", mode: "40755", device: "0:0", data: "" },
    { path: "dev/console", mode: "20600", device: "5:1", data: "" },
    { path: "init", mode: "100755", device: "0:0", data: "#!/bin/sh" },
    { path: "empty", mode: "100644", device: "0:0", data: "" },
    { path: "TRAILER!!!", mode: "0", device: "0:0", data: "" },
  ]);
});
