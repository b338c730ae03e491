import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { Agent, createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { Blobd, CopyFileRequestSchema, CopyFileResponseSchema } from "#gen/aenv/blobd/v1/blobd_pb.js";
import { blobdTransport } from "./transport.ts";

let dir = "";
let agent: Agent;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "aenv-transport-"));
  agent = new Agent({ keepAlive: true });
});
afterEach(() => {
  agent.destroy();
  rmSync(dir, { recursive: true });
});

test("a call is one request with the message, and its answer the message that came", async () => {
  const copied = await copyFrom(async (request, response) => {
    assert.equal(request.url, "/aenv.blobd.v1.Blobd/CopyFile");
    assert.equal(request.headers["content-type"], "application/proto");
    assert.equal(request.headers["accept-encoding"], undefined);
    const { source, target } = fromBinary(CopyFileRequestSchema, Buffer.concat(await request.toArray()));
    assert.deepEqual([source, target], ["/a", "/b"]);
    const answer = toBinary(CopyFileResponseSchema, create(CopyFileResponseSchema, { copiedBytes: 2n ** 40n }));
    response.writeHead(200, { "content-type": "application/proto" }).end(answer);
  });
  assert.equal(copied.copiedBytes, 2n ** 40n);
});

test("what blobd refuses comes with its kind and its words", async () => {
  for (const [wire, code] of [
    ["failed_precondition", Code.FailedPrecondition],
    ["resource_exhausted", Code.ResourceExhausted],
    ["never_heard_of", Code.Unknown],
  ] as const) {
    const refused = copyFrom((_, response) => {
      response.writeHead(400, { "content-type": "application/json" });
      response.end(JSON.stringify({ code: wire, message: "no room" }));
    });
    await assert.rejects(refused, (error) => error instanceof ConnectError && error.code === code);
    await assert.rejects(refused, { rawMessage: "no room" });
  }
});

test("an answer of somebody else is shown", async () => {
  const refused = copyFrom((_, response) => {
    response.writeHead(502).end("<html>");
  });
  await assert.rejects(refused, { code: Code.Unknown, rawMessage: "HTTP 502: <html>" });
});

test("a blobd that ends in the middle of an answer, and one that is not there, are told by the system's error", async () => {
  const cut = copyFrom((_, response) => {
    response.writeHead(200, { "content-length": 100 }).write("half");
    setImmediate(() => response.destroy());
  });
  await assert.rejects(cut, (error) => systemErrorOf(error) === "ECONNRESET");
  const nobody = createClient(Blobd, blobdTransport(join(dir, "nobody"), agent)).copyFile({});
  await assert.rejects(nobody, (error) => systemErrorOf(error) === "ENOENT");
});

function systemErrorOf(error: unknown): unknown {
  const { cause } = ConnectError.from(error);
  return cause instanceof Error && "code" in cause ? cause.code : undefined;
}

/** What a call comes to that is answered like this. */
async function copyFrom(
  answer: (request: IncomingMessage, response: ServerResponse) => void | Promise<void>,
): ReturnType<ReturnType<typeof createClient<typeof Blobd>>["copyFile"]> {
  const socketPath = join(dir, "blobd.sock");
  const server = createServer((request, response) => void answer(request, response)).listen(socketPath);
  await once(server, "listening");
  try {
    return await createClient(Blobd, blobdTransport(socketPath, agent)).copyFile({ source: "/a", target: "/b" });
  } finally {
    server.closeAllConnections();
    server.close();
  }
}
