import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { type CloudKernel, modulesInOrder, withoutSignature } from "./cloud-kernel.ts";

let kernel: CloudKernel = { release: "6.1.0-1-cloud-amd64", dir: "" };
beforeEach(() => {
  kernel = { ...kernel, dir: mkdtempSync(join(tmpdir(), "aenv-kernel-test-")) };
  write("modules.builtin", "kernel/fs/ext4/ext4.ko\nkernel/lib/crc-itu.ko\n");
  module("kernel/lib/irqbypass.ko", "");
  module("kernel/kvm/kvm.ko", "irqbypass");
  module("kernel/kvm/kvm-amd.ko", "kvm,crc-itu");
});
afterEach(() => rmSync(kernel.dir, { recursive: true }));

test("modules come after those they need, once, however their names are written", () => {
  const files = modulesInOrder(kernel, ["kvm_amd", "kvm", "ext4"]);
  assert.deepEqual(
    files.map((file) => basename(file)),
    ["irqbypass.ko", "kvm.ko", "kvm-amd.ko"],
  );
});

test("a module that the kernel does not have is named", () => {
  assert.throws(() => modulesInOrder(kernel, ["kvm", "btrfs"]), {
    message: "kernel 6.1.0-1-cloud-amd64 has no module btrfs",
  });
});

test("of a signed module all before the signature is left, of another one everything", () => {
  const code = Buffer.from("ELF and code");
  const [signature, about] = [Buffer.from("signature"), Buffer.alloc(12)];
  about.writeUInt32BE(signature.length, 8);
  const signed = Buffer.concat([code, signature, about, Buffer.from("~Module signature appended~\n")]);
  for (const module of [signed, code, Buffer.alloc(0)])
    assert.equal(withoutSignature(module).toString(), module.length === 0 ? "" : "ELF and code");
});

function module(path: string, depends: string): void {
  write(path, `ELF\0license=GPL\0depends=${depends}\0retpoline=Y\0`);
}

function write(path: string, text: string): void {
  const file = join(kernel.dir, "lib", "modules", kernel.release, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
}
