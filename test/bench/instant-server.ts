import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { envelope, FLAG_END } from "#lib/connect-envelope";
import { ENVD_VERSION } from "../../src/server/node.ts";

/**
 * A server that has nothing to do: it answers create, `echo hi` and kill as aenv does, at once. What a client takes against it, the client
 * takes by itself. Prints its port; ends with its standard input.
 */

const START = message({ event: { start: { pid: 77 } } });
const END = Buffer.concat([
  message({ event: { data: { stdout: Buffer.from("hi\n").toString("base64") } } }),
  message({ event: { end: { exited: true, status: "exit status 0" } } }),
  message({}, FLAG_END),
]);

let created = 0;

const server = createServer((request, response) => {
  request.resume().once("end", () => answer(`${request.method} ${request.url}`, response));
});
// The product's connections outlive what is measured between two turns of this one.
server.keepAliveTimeout = 600_000;
server.listen(0, "127.0.0.1", () => process.stdout.write(`${(server.address() as AddressInfo).port}\n`));
process.stdin.resume().once("end", () => process.exit());

function answer(asked: string, response: ServerResponse): void {
  if (/^POST .*\/sandboxes$/.test(asked)) {
    response.writeHead(201, { "content-type": "application/json" }).end(JSON.stringify(sandbox()));
  } else if (asked.startsWith("DELETE ")) {
    response.writeHead(204).end();
  } else if (asked === "POST /process.Process/Start") {
    response.writeHead(200, { "content-type": "application/connect+json" }).write(START);
    // As the product's: a program's start is told before its end.
    setImmediate(() => response.end(END));
  } else {
    response.writeHead(404).end(`${asked} is not what is measured`);
  }
}

function sandbox() {
  created += 1;
  return {
    sandboxID: `i${String(created).padStart(19, "0")}`,
    templateID: "base",
    clientID: "instant",
    envdVersion: ENVD_VERSION,
    envdAccessToken: "t".repeat(40),
    domain: null,
  };
}

function message(content: unknown, flags = 0): Buffer {
  return envelope(Buffer.from(JSON.stringify(content)), flags);
}
