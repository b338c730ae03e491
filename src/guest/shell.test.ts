import assert from "node:assert/strict";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { after, beforeEach, test } from "node:test";
import { gzipSync } from "node:zlib";
import { envelope, FLAG_COMPRESSED } from "#lib/connect-envelope";
import { LINE_MAX_CHARS, LineSplitter } from "./lines.ts";
import { GuestShell } from "./shell.ts";

const PORT = 49983;

let server: Server;
/** What root inside a machine may answer in the agent's place. */
let sent: Uint8Array = new Uint8Array();
let accepted: string | undefined;

beforeEach(async () => {
  if (server !== undefined) return;
  server = createServer((request, response) => {
    accepted = request.headers["connect-accept-encoding"] as string | undefined;
    response.writeHead(200, { "content-type": "application/connect+proto", "connect-content-encoding": "gzip" });
    response.end(sent);
  });
  await new Promise<void>((resolve) => server.listen(PORT, "127.0.0.77", resolve));
  assert.equal((server.address() as AddressInfo).port, PORT);
});
after(() => server?.close());

test("an answer that is large, or becomes large, is not taken in", async () => {
  const large = Buffer.alloc(4 * 1024 * 1024);
  for (const body of [envelope(large), envelope(gzipSync(large), FLAG_COMPRESSED)]) {
    sent = body;
    const shell = new GuestShell("127.0.0.77");
    await assert.rejects(
      shell.run("true", () => {}, AbortSignal.timeout(10_000)),
      (error: Error) => error.message.length <= LINE_MAX_CHARS,
    );
    shell.close();
  }
  assert.equal(accepted, undefined, "it says that it takes compressed answers");
});

test("a line that comes in one piece is cut as one that comes in many", () => {
  const text = `${"a".repeat(2 * LINE_MAX_CHARS + 7)}\r\nb\n${"c".repeat(LINE_MAX_CHARS)}`;
  for (const step of [1, 999, text.length]) {
    const lines: string[] = [];
    const splitter = new LineSplitter((line) => lines.push(line));
    const bytes = Buffer.from(text);
    for (let at = 0; at < bytes.length; at += step) splitter.add(bytes.subarray(at, at + step));
    splitter.flush();
    assert.ok(lines.every((line) => line.length <= LINE_MAX_CHARS));
    assert.equal(lines.join("").replaceAll("\r", ""), text.replaceAll("\r", "").replaceAll("\n", ""));
    assert.deepEqual(lines.slice(-2), ["b", "c".repeat(LINE_MAX_CHARS)]);
  }
});
