import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, describe, it } from "node:test";
import { readTar, TAR_END, type TarEntry, tarHeader, tarPadding } from "./tar.ts";
import { unpackTree } from "./unpack.ts";

const base = mkdtempSync(join(tmpdir(), "aenv-unpack-"));
let folder: string;
beforeEach(async () => {
  folder = join(await mkdtemp(join(base, "outer-")), "folder");
  await mkdir(folder);
});
after(async () => await rm(base, { recursive: true }));

interface Given extends Partial<Omit<TarEntry, "size">> {
  readonly content?: string;
}

function archive(...entries: Given[]): Buffer {
  const parts = entries.map(({ name = "bad", kind = "file", mode = 0o644, target = "", content = "bad" }) => {
    const body = Buffer.from(kind === "file" ? content : "");
    const header = tarHeader({ name, kind, mode, modifiedS: 1, target, size: body.length });
    return Buffer.concat([header, body, tarPadding(body.length)]);
  });
  return Buffer.concat([...parts, TAR_END]);
}

/** In pieces of any size, as a network cuts them. */
async function* pieces(bytes: Buffer, size = 7): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function unpack(bytes: Buffer): Promise<void> {
  const on = { onFile: () => {}, onBytes: () => {}, onSkipped: () => {} };
  await unpackTree(pieces(bytes), folder, (name) => name, on);
}

describe("unpackTree", () => {
  for (const [what, entries] of [
    ["dots", [{ name: "../bad" }]],
    ["dots inside", [{ name: "a/../../bad" }]],
    ["an absolute name", [{ name: "/tmp/aenv-bad" }]],
    ["a zero byte", [{ name: `a/${"x".repeat(120)}\0bad` }]],
    ["a link to above", [{ name: "out", kind: "link", target: ".." }, { name: "out/bad" }]],
    ["a link to far away", [{ name: "out", kind: "link", target: "/tmp" }, { name: "out/aenv-bad" }]],
    [
      "a link within",
      [{ name: "in", kind: "folder" }, { name: "near", kind: "link", target: "in" }, { name: "near/bad" }],
    ],
    [
      "a link in place of its own folder",
      [{ name: "d/f", content: "" }, { name: "d", kind: "link", target: ".." }, { name: "d/bad" }],
    ],
  ] as const satisfies readonly (readonly [string, readonly Given[]])[]) {
    it(`never leaves its folder by ${what}`, async () => {
      await assert.rejects(unpack(archive(...entries)), { name: "CliError" });
      const all = execFileSync("find", [join(folder, "..")], { encoding: "utf8" });
      assert.doesNotMatch(all, /bad|\.aenv-/);
      await assert.rejects(readFile("/tmp/aenv-bad"), { code: "ENOENT" });
    });
  }

  it("replaces a link that is there instead of writing through it", async () => {
    await writeFile(join(folder, "..", "outside"), "outside");
    await symlink("../outside", join(folder, "f"));
    await unpack(archive({ name: "./f", content: "new" }));
    assert.equal(await readFile(join(folder, "..", "outside"), "utf8"), "outside");
    assert.equal(await readFile(join(folder, "f"), "utf8"), "new");
  });

  it("tells an archive that was cut anywhere, and leaves whole files only", async () => {
    const whole = archive({ name: "a", content: "whole" }, { name: "b", content: "x".repeat(2000) });
    for (const length of [0, 100, 512, 515, 1024, 1500, whole.length - 1024]) {
      await rm(folder, { recursive: true });
      await mkdir(folder);
      await assert.rejects(unpack(whole.subarray(0, length)), /stopped sending in the middle/);
      for (const name of await readdir(folder)) {
        assert.equal((await readFile(join(folder, name))).length, name === "a" ? 5 : 2000, `${length}: ${name}`);
      }
    }
    await assert.rejects(unpack(Buffer.alloc(600, "x")), /is no archive/);
  });

  it("reads what it writes: names and links of any length and bytes", async () => {
    const names = ["a", "n".repeat(100), "n".repeat(101), "line\n12 path=evil\nend".repeat(9), "\xff\xfe".repeat(60)];
    const entries = names.flatMap((name) => [
      { name, content: name } as const,
      { name: `${name}-link`, kind: "link", target: name } as const,
    ]);
    const found: [string, string, string][] = [];
    for await (const { name, kind, target, content } of readTar(pieces(archive(...entries), 100))) {
      const read = (await Array.fromAsync(content)).map((piece) => piece.toString("utf8")).join("");
      found.push([name, target, kind === "file" ? read : ""]);
    }
    assert.deepEqual(
      found,
      entries.map(({ name, ...rest }) => ("target" in rest ? [name, rest.target, ""] : [name, "", name])),
    );
  });
});
