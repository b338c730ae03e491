import assert from "node:assert/strict";
import { mkdtempSync } from "node:fs";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, test } from "node:test";
import { errorKind } from "#domain";
import { MAX_SERVERS } from "./addresses.ts";
import { claimServer, type ServerClaim } from "./claim.ts";

const root = mkdtempSync(join(tmpdir(), "aenv-claim-"));
let claimsDir: string;
after(() => rm(root, { recursive: true }));
beforeEach(async () => {
  claimsDir = await mkdtemp(join(root, "claims-"));
});

const newDataDir = (): Promise<string> => mkdtemp(join(root, "data-"));
const claim = (
  dataDir: string,
  onStale: (prefix: string) => void = () => assert.fail("nothing is stale"),
): Promise<ServerClaim> => claimServer({ dataDir, claimsDir, onStale: async ({ prefix }) => onStale(prefix) });

test("each data folder keeps its index until it is released", async () => {
  const [first, second] = [await newDataDir(), await newDataDir()];
  assert.equal((await claim(first)).prefix, "ae0");
  const claimed = await claim(second);
  assert.equal(claimed.index, 1);
  assert.deepEqual(JSON.parse(await readFile(join(claimsDir, "1"), "utf8")), { dataDir: second });
  assert.equal((await claim(first)).index, 0);
  await claimed.release();
  await claimed.release();
  assert.equal((await claim(await newDataDir())).index, 1);
});

test("many at once get different indexes, the same folder one", async () => {
  const folders = await Promise.all(Array.from({ length: 6 }, newDataDir));
  const claims = await Promise.all([...folders, ...folders].map((dataDir) => claim(dataDir)));
  const indexes = claims.map(({ index }) => index);
  assert.deepEqual(indexes.slice(0, 6), indexes.slice(6));
  assert.deepEqual([...new Set(indexes)].sort(), [0, 1, 2, 3, 4, 5]);
});

test("the claim of a folder that is gone is taken over by one of those who want it, after its leftovers are removed", async () => {
  const gone = await newDataDir();
  await claim(gone);
  await rm(gone, { recursive: true });
  await assert.rejects(
    claim(await newDataDir(), () => {
      throw new Error("leftovers stay");
    }),
    /leftovers stay/,
  );
  assert.deepEqual(JSON.parse(await readFile(join(claimsDir, "0"), "utf8")), { dataDir: gone });

  const cleaned: string[] = [];
  const folders = await Promise.all([newDataDir(), newDataDir()]);
  const claims = await Promise.all(folders.map((dataDir) => claim(dataDir, (prefix) => cleaned.push(prefix))));
  assert.deepEqual(claims.map(({ index }) => index).sort(), [0, 1]);
  assert.deepEqual(cleaned, ["ae0"]);
});

test("when all are taken the error names the files; what cannot be read counts as taken", async () => {
  for (let index = 0; index < MAX_SERVERS; index += 1) {
    await writeFile(join(claimsDir, String(index)), index === 5 ? "not json" : JSON.stringify({ dataDir: root }));
  }
  const before = (await readdir(claimsDir)).length;
  await assert.rejects(claim(await newDataDir()), (error: Error) => {
    assert.equal(errorKind(error), "exhausted");
    assert.match(error.message, new RegExp(claimsDir));
    return true;
  });
  assert.equal((await readdir(claimsDir)).filter((name) => name !== ".lock").length, before);
});
