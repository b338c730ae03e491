import assert from "node:assert/strict";
import {
  chmodSync,
  chownSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { shareAuthority } from "./authority.ts";

const USER = 54_321;
const SETTINGS = ["HOME", "XDG_CONFIG_HOME", "SUDO_UID", "SUDO_GID"] as const;
const before = Object.fromEntries(SETTINGS.map((name) => [name, process.env[name]]));

let temp = "";
let home = "";
let authority = "";
beforeEach(() => {
  temp = mkdtempSync(join(tmpdir(), "aenv-authority-test-"));
  // The person reaches their home, and what they are kept from is by its own mode.
  chmodSync(temp, 0o755);
  home = join(temp, "home");
  mkdirSync(home);
  authority = join(temp, "authority.pem");
  writeFileSync(authority, "certificate\n", { mode: 0o600 });
  for (const name of SETTINGS) delete process.env[name];
  process.env.HOME = home;
});
afterEach(() => {
  for (const name of SETTINGS) {
    if (before[name] === undefined) delete process.env[name];
    else process.env[name] = before[name];
  }
  rmSync(temp, { recursive: true });
});

/** As `sudo` with the person's home. */
function throughSudo(): void {
  chownSync(home, USER, USER);
  Object.assign(process.env, { SUDO_UID: String(USER), SUDO_GID: String(USER) });
}

test("the copy is there whole and for all to read, also in place of an older one", async () => {
  const copy = await shareAuthority(authority);
  assert.equal(copy, join(home, ".config/aenv/ca.pem"));
  writeFileSync(authority, "renewed\n");
  assert.equal(await shareAuthority(authority), copy);
  assert.equal(readFileSync(copy, "utf8"), "renewed\n");
  assert.equal(lstatSync(copy).mode & 0o777, 0o644);
  assert.deepEqual(readdirSync(join(home, ".config/aenv")), ["ca.pem"]);
});

test("a link under the copy's name is replaced; what it points to is left alone", async () => {
  const victim = join(temp, "victim");
  writeFileSync(victim, "precious\n", { mode: 0o600 });
  mkdirSync(join(home, ".config/aenv"), { recursive: true });
  symlinkSync(victim, join(home, ".config/aenv/ca.pem"));
  const copy = await shareAuthority(authority);
  assert.ok(lstatSync(copy).isFile());
  assert.equal(readFileSync(copy, "utf8"), "certificate\n");
  assert.deepEqual([readFileSync(victim, "utf8"), lstatSync(victim).mode & 0o777], ["precious\n", 0o600]);
});

test("what stands in the copy's place and is no file is an error, and leaves nothing behind", async () => {
  mkdirSync(join(home, ".config/aenv/ca.pem/full"), { recursive: true });
  await assert.rejects(shareAuthority(authority), /ca\.pem/);
  assert.deepEqual(readdirSync(join(home, ".config/aenv")), ["ca.pem"]);
});

test("root writes with the rights of who called sudo, and nowhere else by their links", {
  skip: process.getuid?.() !== 0 && "needs root",
}, async () => {
  throughSudo();
  const copy = await shareAuthority(authority);
  for (const path of [copy, join(home, ".config/aenv"), join(home, ".config")]) {
    const { uid, gid } = lstatSync(path);
    assert.deepEqual([uid, gid], [USER, USER], path);
  }
  // Any folder on the way may be a link to one that is not theirs.
  const forbidden = join(temp, "forbidden");
  mkdirSync(join(forbidden, "aenv"), { recursive: true });
  for (const [name, target] of [
    [".config/aenv", join(forbidden, "aenv")],
    [".config", forbidden],
  ] as const) {
    rmSync(join(home, name), { recursive: true });
    symlinkSync(target, join(home, name));
    await assert.rejects(shareAuthority(authority), /[Pp]ermission denied/, name);
    rmSync(join(home, name));
    mkdirSync(join(home, name));
  }
  assert.deepEqual(readdirSync(forbidden, { recursive: true }), ["aenv"]);
  assert.equal(lstatSync(join(forbidden, "aenv")).uid, 0);
});
