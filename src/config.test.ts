import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, describe, it } from "node:test";
import { AenvError } from "#domain";
import { loadConfig, splitListen, tlsListenOf } from "./config.ts";

const folder = mkdtempSync(join(tmpdir(), "aenv-config-"));
after(() => rmSync(folder, { recursive: true, force: true }));

function file(name: string, text: string): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

/** What loading complains about. */
function complaint(argv: readonly string[], env: NodeJS.ProcessEnv = {}): string {
  try {
    loadConfig(argv, {}, env);
  } catch (error) {
    assert.ok(error instanceof AenvError);
    assert.equal(error.kind, "invalid");
    return error.message;
  }
  assert.fail("it was taken");
}

describe("configuration", () => {
  it("takes a flag over the environment over the file over the default, and says which", () => {
    const path = file("order.json", JSON.stringify({ slotsReady: 1, slotsMax: 11, logLevel: "debug" }));
    const argv = ["--config", path, "--slots-ready", "3"];
    const { config, sources } = loadConfig(argv, {}, { AENV_SLOTS_READY: "2", AENV_SLOTS_MAX: "22" });
    assert.deepEqual(
      [config.slotsReady, config.slotsMax, config.logLevel, config.startsAtOnce >= 2],
      [3, 22, "debug", true],
    );
    assert.deepEqual(sources, { slotsReady: "--slots-ready", slotsMax: "AENV_SLOTS_MAX", logLevel: path });
  });

  it("finds the file in the data folder by itself", () => {
    file("config.json", JSON.stringify({ dataDir: folder, commit: "abc" }));
    assert.equal(loadConfig(["--data-dir", folder], {}, {}).config.commit, "abc");
  });

  it("keeps texts that look like numbers texts", () => {
    assert.equal(
      loadConfig(["--config", file("number.json", "{}"), "--commit", "1234567"], {}, {}).config.commit,
      "1234567",
    );
  });

  it("names field, value and source of what is wrong", () => {
    const good = file("good.json", "{}");
    assert.match(complaint(["--config", good, "--listen", "3"]), /listen \("3", from --listen\): must have the form/);
    assert.match(
      complaint(["--config", good], { AENV_SLOTS_READY: "many" }),
      /slotsReady \("many", from AENV_SLOTS_READY\)/,
    );
    assert.match(
      complaint(["--config", good, "--virtualization", "xen"]),
      /virtualization \("xen", from --virtualization\): .*"gvisor"/,
    );
    assert.match(complaint(["--config", good], { AENV_PVM_KERNEL_PATH: "vmlinux" }), /pvmKernelPath \("vmlinux", from/);
    assert.match(complaint(["--config", file("odd.json", '{"frob": 1}')]), /frob/);
    assert.match(complaint(["--config", file("broken.json", "{")]), /broken\.json cannot be read/);
    assert.match(complaint(["--config", join(folder, "missing.json")]), /missing\.json cannot be read/);
    assert.match(complaint(["--config", good, "--nonsense"]), /nonsense/);
  });

  it("leaves the choice of the driver to the host unless it is made", () => {
    const { config } = loadConfig(["--config", file("none.json", "{}")], {}, {});
    assert.deepEqual([config.virtualization, config.pvmKernelPath], ["auto", null]);
    const env = { AENV_VIRTUALIZATION: "pvm", AENV_PVM_KERNEL_PATH: "/lib/vmlinux-pvm" };
    const { config: chosen } = loadConfig(["--config", file("none.json", "{}")], {}, env);
    assert.deepEqual([chosen.virtualization, chosen.pvmKernelPath], ["pvm", "/lib/vmlinux-pvm"]);
  });

  it("splits addresses of both families", () => {
    assert.deepEqual(splitListen("127.0.0.1:80"), { host: "127.0.0.1", port: 80 });
    assert.deepEqual(splitListen("[::1]:8000"), { host: "::1", port: 8000 });
  });
});

describe("where TLS is spoken", () => {
  const tlsOf = (...flags: string[]): string | undefined => tlsListenOf(loadConfig(flags, {}, {}).config);

  it("follows the port of HTTP unless it is said", () => {
    assert.equal(tlsOf(), "127.0.0.1:8443");
    assert.equal(tlsOf("--listen", "[::1]:9000"), "[::1]:9443");
    assert.equal(tlsOf("--tls-listen", "0.0.0.0:443"), "0.0.0.0:443");
    assert.equal(tlsOf("--tls-listen", "none"), undefined);
    assert.equal(tlsOf("--listen", "127.0.0.1:65500"), undefined);
  });
  it("wants certificate and key together, and a domain that a wildcard can be made for", () => {
    assert.throws(() => tlsOf("--tls-cert-path", "/c.pem"), /tlsCertPath and tlsKeyPath belong together/);
    for (const domain of ["localhost", "Upper.case", "a.b:443", "*.a.b", "a..b"])
      assert.throws(() => tlsOf("--domain", domain), /domain \(/, domain);
  });
});
