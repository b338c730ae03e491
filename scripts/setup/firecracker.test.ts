import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, describe, test } from "node:test";
import { fetchRelease, firecrackerPaths, type Release, usesOurFirecracker, wantsFirecracker } from "./firecracker.ts";

const NAME = "firecracker-v9.9.9-x86_64.tgz";
const FIRECRACKER = randomBytes(300_000);
const JAILER = randomBytes(200_000);

const temp = mkdtempSync(join(tmpdir(), "aenv-firecracker-test-"));
const archive = makeArchive();
const sha256 = createHash("sha256").update(archive).digest("hex");

/** Answers one request; those after the last of the list get the whole file. */
type Answer = (request: IncomingMessage, response: ServerResponse) => void;
let answers: Answer[] = [];
/** The ranges that were asked for, in order. */
let ranges: (string | undefined)[] = [];
let github: Server;
let objects: Server;
/** Called when the client has taken in a piece. */
let onPiece = (): void => {};
let destination = { dir: "", downloads: "" };

beforeEach(async () => {
  if (github !== undefined) return;
  objects = await listen((request, response) => {
    assert.equal(request.url, "/objects/1?token=x");
    ranges.push(request.headers.range);
    (answers.shift() ?? whole)(request, response);
  });
  github = await listen((request, response) => {
    if (request.url !== `/releases/download/v9.9.9/${NAME}`) return void response.writeHead(404).end("Not Found");
    return void response.writeHead(302, { location: `${addressOf(objects)}/objects/1?token=x` }).end();
  });
});
after(() => {
  for (const server of [github, objects]) server?.close().closeAllConnections();
  rmSync(temp, { recursive: true });
});
beforeEach(() => {
  answers = [];
  ranges = [];
  onPiece = () => {};
  const place = mkdtempSync(join(temp, "place-"));
  destination = { dir: join(place, "firecracker", "9.9.9"), downloads: join(place, "download") };
});

describe("fetching Firecracker's release", () => {
  test("both programs come out of the archive, by a redirect, and nothing else stays", async () => {
    const notes: string[] = [];
    await fetchIt({ note: (text) => notes.push(text) });
    assertThere();
    assert.match(notes.at(-1) ?? "", /^0\.5 of 0\.5 MiB$/);
  });

  test("a connection that breaks off is taken up where it was", async () => {
    const half = Math.floor(archive.length / 2);
    answers = [truncated(half), truncated(half + 1000)];
    await fetchIt();
    assertThere();
    assert.deepEqual(ranges, [undefined, `bytes=${half}-`, `bytes=${half + 1000}-`]);
  });

  test("what came in an earlier run is not fetched again", async () => {
    const answer = truncated(1000);
    answers = [answer, answer, answer];
    await assert.rejects(fetchIt(), /cannot be had: .*3 times in a row/);
    assert.equal(existsSync(destination.dir), false);
    await fetchIt();
    assertThere();
    assert.equal(ranges.at(-1), "bytes=1000-");
  });

  test("an archive that had come whole when the run ended needs only its end", async () => {
    mkdirSync(destination.downloads, { recursive: true });
    writeFileSync(join(destination.downloads, `${NAME}.part`), archive);
    await fetchIt();
    assertThere();
    assert.deepEqual(ranges, [`bytes=${archive.length}-`]);
  });

  test("a rest of something else is thrown away, once", async () => {
    mkdirSync(destination.downloads, { recursive: true });
    writeFileSync(join(destination.downloads, `${NAME}.part`), "the beginning of another file");
    await fetchIt();
    assertThere();
    assert.deepEqual(ranges, ["bytes=29-", undefined]);
  });

  test("a server without ranges sends all of it again", async () => {
    answers = [truncated(1000), (_, response) => void response.writeHead(200).end(archive)];
    await fetchIt();
    assertThere();
  });

  test("a server that is busy or silent for a while is waited for", async () => {
    answers = [
      (_, response) => void response.writeHead(503, { "retry-after": "0" }).end("busy"),
      () => {},
      (_, response) => void response.writeHead(502).end(),
    ];
    await fetchIt({ patience: { attempts: 4, pauseMs: 1, silenceMs: 100 } });
    assertThere();
  });

  test("a server that stays busy is given up, and the words say what to do", async () => {
    answers = Array.from({ length: 3 }, () => (_: IncomingMessage, response: ServerResponse) => {
      response.writeHead(503).end();
    });
    await assert.rejects(fetchIt(), (error: Error) => {
      assert.match(
        error.message,
        /v9\.9\.9-x86_64\.tgz cannot be had: .* answers 503 Service Unavailable, 3 times in a row/,
      );
      assert.ok(error.message.includes(`Put that file at ${join(destination.downloads, NAME)}`));
      assert.match(error.message, /AENV_FIRECRACKER_URL/);
      return true;
    });
  });

  test("other bytes are refused and do not stay", async () => {
    answers = [(_, response) => void response.writeHead(200).end(randomBytes(1000))];
    await assert.rejects(fetchIt(), /another file, or was changed on the way: its sha256 is [0-9a-f]{64}, not/);
    assert.deepEqual(readdirSync(destination.downloads), []);
    assert.equal(existsSync(destination.dir), false);
  });

  test("a release that is not there is not asked for again", async () => {
    await assert.rejects(fetchIt({ version: "9.9.8" }), /answers 404 Not Found\.\nPut/);
    answers = [(_, response) => void response.writeHead(403).end()];
    await assert.rejects(fetchIt(), /answers 403 Forbidden\.\nPut/);
    assert.equal(ranges.length, 1);
  });

  test("offline the address is named, and a file put there by hand is taken", async () => {
    const closed = await listen(() => {});
    const baseUrl = addressOf(closed);
    await new Promise((resolve) => closed.close(resolve));
    const url = `${baseUrl}/v9.9.9/${NAME}`;
    await assert.rejects(fetchIt({ baseUrl }), (error: Error) => {
      assert.ok(error.message.startsWith(`${url} cannot be had: connect ECONNREFUSED`), error.message);
      return true;
    });
    await assert.rejects(fetchIt({ baseUrl: "http://no-such-host.invalid" }), /cannot be had: .*no-such-host\.invalid/);

    writeFileSync(join(destination.downloads, NAME), "not it");
    await assert.rejects(fetchIt({ baseUrl }), /is not the archive of that release.*Remove it\./);
    writeFileSync(join(destination.downloads, NAME), archive);
    await fetchIt({ baseUrl });
    assertThere();
  });

  test("a release that is made otherwise leaves nothing half done", async () => {
    const other = spawnSync("tar", ["--create", "--gzip", "--directory", temp, "."], { maxBuffer: 2 ** 24 }).stdout;
    answers = [(_, response) => void response.writeHead(200).end(other)];
    const otherSha256 = createHash("sha256").update(other).digest("hex");
    await assert.rejects(fetchIt({ sha256: otherSha256 }), /tar: .*Not found in archive/);
    assert.deepEqual(readdirSync(join(destination.dir, "..")), []);
  });
});

describe("whether a server needs it", () => {
  test("what is wanted by name decides, and what the operator has brought is used", async () => {
    assert.equal(await wantsFirecracker({ virtualization: "gvisor" }), false);
    assert.equal(await wantsFirecracker({ virtualization: "kvm" }), true);
    assert.equal(await wantsFirecracker({ virtualization: "pvm" }), true);
    assert.deepEqual(await firecrackerPaths({ virtualization: "gvisor", firecrackerPath: "/opt/firecracker" }), {});

    const own = { virtualization: "kvm", firecrackerPath: "/opt/firecracker" } as const;
    assert.equal(usesOurFirecracker(own), false);
    const paths = await firecrackerPaths(own);
    assert.equal(paths.firecrackerPath, "/opt/firecracker");

    const older = paths.jailerPath?.replace(/[^/]+\/jailer$/, "1.0.0/jailer") ?? "";
    assert.notEqual(older, paths.jailerPath);
    assert.equal((await firecrackerPaths({ virtualization: "kvm", jailerPath: older })).jailerPath, paths.jailerPath);
  });
});

type Options = Partial<Release> & Pick<Parameters<typeof fetchRelease>[1], "note" | "patience">;

async function fetchIt({ note, patience, ...release }: Options = {}): Promise<void> {
  const baseUrl = `${addressOf(github)}/releases/download/`;
  await fetchRelease(
    { version: "9.9.9", machine: "x86_64", sha256, baseUrl, ...release },
    {
      ...destination,
      patience: patience ?? { attempts: 3, pauseMs: 1, silenceMs: 5000 },
      note: (text) => {
        note?.(text);
        onPiece();
      },
    },
  );
}

function assertThere(): void {
  assert.deepEqual(readFileSync(join(destination.dir, "firecracker")), FIRECRACKER);
  assert.deepEqual(readFileSync(join(destination.dir, "jailer")), JAILER);
  assert.equal(statSync(join(destination.dir, "jailer")).mode & 0o777, 0o755);
  assert.deepEqual(readdirSync(destination.dir).sort(), ["firecracker", "jailer"]);
  assert.deepEqual(readdirSync(destination.downloads), []);
}

/** The file, or the range of it that is asked for. */
function whole(request: IncomingMessage, response: ServerResponse): void {
  const start = startOf(request);
  if (start >= archive.length)
    return void response.writeHead(416, { "content-range": `bytes */${archive.length}` }).end();
  const status = request.headers.range === undefined ? 200 : 206;
  return void response.writeHead(status, headersFrom(start)).end(archive.subarray(start));
}

/** The same, cut off once the file's first `end` bytes are on the client's disk. */
function truncated(end: number): Answer {
  return (request, response) => {
    const start = startOf(request);
    response.writeHead(request.headers.range === undefined ? 200 : 206, headersFrom(start));
    if (start >= end) return void response.write("", () => response.destroy());
    response.write(archive.subarray(start, end));
    onPiece = () => {
      if (statSync(join(destination.downloads, `${NAME}.part`)).size === end) response.destroy();
    };
  };
}

function startOf(request: IncomingMessage): number {
  return Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? "")?.[1] ?? 0);
}

function headersFrom(start: number): Record<string, string | number> {
  const range = `bytes ${start}-${archive.length - 1}/${archive.length}`;
  return { "content-length": archive.length - start, "content-range": range, "accept-ranges": "bytes" };
}

async function listen(answer: Answer): Promise<Server> {
  const server = createServer(answer);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return server;
}

function addressOf(server: Server): string {
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

function makeArchive(): Buffer {
  const dir = join(temp, "release-v9.9.9-x86_64");
  mkdirSync(dir);
  writeFileSync(join(dir, "firecracker-v9.9.9-x86_64"), FIRECRACKER, { mode: 0o755 });
  writeFileSync(join(dir, "jailer-v9.9.9-x86_64"), JAILER, { mode: 0o755 });
  writeFileSync(join(dir, "LICENSE"), "text");
  return spawnSync("tar", ["--create", "--gzip", "--directory", temp, "release-v9.9.9-x86_64"], { maxBuffer: 2 ** 24 })
    .stdout;
}
