import assert from "node:assert/strict";
import type { IncomingMessage } from "node:http";
import { connect } from "node:net";
import { text } from "node:stream/consumers";
import { afterEach, beforeEach, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { ID, World } from "./world.ts";

let world: World;
beforeEach(async () => {
  world = await World.open();
  world.run();
});
afterEach(() => world.close());

/** What comes back for a request of so many lines; the connection ends with the answer. */
async function exchange(method: string, path: string, lines: readonly string[] = [], body = ""): Promise<string> {
  const socket = connect(world.edge.port, "127.0.0.1");
  const head = [
    `${method} ${path} HTTP/1.1`,
    `Host: ${world.servicePort}-${ID}.e2b.test`,
    "Connection: close",
    ...lines,
  ];
  socket.write(`${head.join("\r\n")}\r\n\r\n${body}`);
  return await text(socket);
}

describe("NET-07 a request and its answer", () => {
  it("keep method, path, query and headers", async () => {
    world.serve = (incoming, response) => {
      const { method, url, rawHeaders } = incoming;
      response.setHeader("set-cookie", ["a=1", "b=2"]);
      response.end(JSON.stringify({ method, url, host: incoming.headers.host, count: rawHeaders.length / 2 }));
    };
    for (const method of ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "POST"])
      for (const path of ["/a%2Fb//c/../d?x=%20&y", "/?", "/"]) {
        const answer = await exchange(method, path);
        const said = JSON.parse(answer.split("\r\n\r\n")[1] ?? "") as Record<string, unknown>;
        assert.deepEqual([said.method, said.url], [method, path]);
        assert.match(answer, /set-cookie: a=1\r\nset-cookie: b=2\r\n/i);
      }
    const large = await exchange("GET", "/", [`X-Large: ${"x".repeat(14_000)}`]);
    assert.match(large, /^HTTP\/1\.1 200/);
  });

  it("lose the headers of the connection, those that were meant for the edge, and keys of the platform", async () => {
    world.serve = (incoming, response) => response.end(JSON.stringify(incoming.headers));
    const answer = await exchange("GET", "/", [
      "Connection: x-hop",
      "X-Hop: 1",
      "Keep-Alive: timeout=5",
      "E2b-Sandbox-Id: another",
      "E2b-Sandbox-Port: 1",
      "E2b-Traffic-Access-Token: t",
      "X-API-Key: e2b_0123456789abcdef",
      "X-Access-Token: theirs",
      "X-Own: 1",
    ]);
    const seen = JSON.parse(answer.split("\r\n\r\n")[1] ?? "") as Record<string, string>;
    assert.deepEqual(Object.keys(seen).sort(), [
      "host",
      "x-access-token",
      "x-forwarded-for",
      "x-forwarded-host",
      "x-forwarded-proto",
      "x-own",
    ]);
    assert.equal(seen["x-own"], "1");
    const own = await exchange("GET", "/", ["X-API-Key: the-services-own"]);
    assert.match(own, /the-services-own/);
  });

  it("keep their length, whatever a client says of it", async () => {
    const seen: string[] = [];
    world.serve = async (incoming, response) => {
      seen.push(`${incoming.url} ${await text(incoming)}`);
      response.end();
    };
    const smuggled = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
    for (const lines of [
      ["Connection: Content-Length", `Content-Length: ${smuggled.length}`],
      ["Transfer-Encoding: chunked", "Content-Length: 3", "Connection: Transfer-Encoding"],
    ]) {
      const isChunked = lines.length === 3;
      const body = isChunked ? `${smuggled.length.toString(16)}\r\n${smuggled}\r\n0\r\n\r\n` : smuggled;
      await exchange("POST", "/", lines, body);
      await exchange("POST", "/after", ["Content-Length: 0"]);
    }
    assert.deepEqual(seen, [`/ ${smuggled}`, "/after ", `/ ${smuggled}`, "/after "]);
  });

  it("have no body where there is none, and keep the length that a HEAD tells", async () => {
    world.serve = (incoming, response) => {
      if (incoming.method === "HEAD") response.writeHead(200, { "content-length": 1234 });
      else response.writeHead(Number(incoming.url?.slice(1)));
      response.end();
    };
    assert.match(await exchange("HEAD", "/"), /content-length: 1234\r\n[\s\S]*\r\n\r\n$/i);
    for (const status of [204, 304]) {
      const answer = await exchange("GET", `/${status}`);
      assert.match(answer, new RegExp(`^HTTP/1.1 ${status} [\\s\\S]*\\r\\n\\r\\n$`));
    }
  });

  it("keep trailers, both ways", async () => {
    world.serve = async (incoming, response) => {
      const body = await text(incoming);
      response.writeHead(200, { trailer: "x-sum" });
      response.write(body);
      response.addTrailers({ "x-sum": incoming.trailers["x-there"] ?? "none" });
      response.end();
    };
    const lines = ["Transfer-Encoding: chunked", "Trailer: X-There"];
    const answer = await exchange("POST", "/", lines, "4\r\nbody\r\n0\r\nX-There: 7\r\n\r\n");
    assert.match(answer, /4\r\nbody\r\n0\r\nx-sum: 7\r\n\r\n$/i);
  });

  it("ask for the body only when the service does", async () => {
    world.service.on("checkContinue", (incoming, response) => {
      if (incoming.url === "/no") return response.writeHead(401, { "content-length": 2 }).end("no");
      response.writeContinue();
      incoming.pipe(response);
    });
    const lines = ["Expect: 100-continue", "Content-Length: 4"];
    const refused = await exchange("POST", "/no", lines);
    assert.match(refused, /^HTTP\/1\.1 401 [\s\S]*no$/);
    const taken = await exchange("POST", "/yes", lines, "body");
    assert.match(taken, /^HTTP\/1\.1 100 Continue\r\n\r\nHTTP\/1\.1 200 [\s\S]*body/);
  });

  it("pass early hints on", async () => {
    world.serve = (_, response) => {
      response.writeEarlyHints({ link: "</a.css>; rel=preload" });
      response.end("done");
    };
    const answer = await exchange("GET", "/");
    assert.match(answer, /^HTTP\/1\.1 103 Early Hints\r\nlink: <\/a.css>; rel=preload\r\n\r\nHTTP\/1\.1 200 /i);
  });

  it("say when a head is too large, and what is not served", async () => {
    const large = Array.from({ length: 40 }, (_, at) => `X-${at}: ${"x".repeat(8000)}`);
    assert.match(await exchange("GET", "/", large), /^HTTP\/1\.1 431 /);
    const refused = await exchange("CONNECT", "example.com:443");
    assert.match(refused, /^HTTP\/1\.1 405 /);
  });

  it("end with a reset when the answer ends in its middle", async () => {
    world.serve = (_, response) => {
      response.writeHead(200, { "content-length": 100 }).write("half");
      setTimeout(() => response.destroy(), 50);
    };
    await assert.rejects(exchange("GET", "/"), { code: "ECONNRESET" });
  });

  it("are sent again on a new connection when the service had just closed the kept one", async () => {
    world.service.keepAliveTimeout = 1;
    world.serve = (_, response) => response.end("served");
    for (let at = 0; at < 10; at += 1) {
      assert.equal(await (await world.ask("/")).text(), "served");
      await sleep(at);
    }
  });
});

describe("a sandbox without public traffic", () => {
  it("is open to who shows its token, but for the agent's port, which has rules of its own", async () => {
    world.serve = (_, response) => response.end("served");
    await world.routes.settled(world.run(ID, 2, { trafficToken: "secret" }));
    const missing = await world.ask("/");
    const words = "Sandbox is secured with traffic access token.";
    assert.deepEqual(
      [missing.status, await missing.json()],
      [
        403,
        {
          sandboxId: ID,
          message: `${words} Token header 'e2b-traffic-access-token' is missing`,
          code: 403,
        },
      ],
    );
    const wrong = await world.ask("/", { headers: { "E2b-Traffic-Access-Token": "guess" } });
    assert.equal(wrong.status, 403);
    assert.match(await wrong.text(), /Provided token in header 'e2b-traffic-access-token' is invalid/);
    const right = await world.ask("/", { headers: { "E2b-Traffic-Access-Token": "secret" } });
    assert.equal(await right.text(), "served");
    assert.equal((await world.ask("/", { headers: { "E2b-Sandbox-Port": "49983" } })).status, 502);
    world.pause({ generation: 3, trafficToken: "secret" });
    assert.equal((await world.ask("/")).status, 403);
    assert.deepEqual(world.woken, []);
  });
});

describe("NET-07 a service is told the host that it is to be told", () => {
  // biome-ignore lint/suspicious/noTemplateCurlyInString: E2B's word for the port
  const mask = "localhost:${PORT}";
  const theirs = "X-Forwarded-Host: evil.example";
  const hosts = ({ headers }: IncomingMessage): string => `${headers.host} ${headers["x-forwarded-host"]}`;

  it("and the one that was asked for beside it, in upgrades too", async () => {
    world.serve = (incoming, response) => response.end(hosts(incoming));
    world.service.on("upgrade", (incoming, socket) =>
      socket.end(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: own\r\nConnection: Upgrade\r\n\r\n${hosts(incoming)}`),
    );
    await world.routes.settled(world.run(ID, 2, { maskHost: mask }));
    const asked = `${world.servicePort}-${ID}.e2b.test`;
    for (const lines of [[theirs], [theirs, "Connection: Upgrade", "Upgrade: own"]])
      assert.match(await exchange("GET", "/", lines), new RegExp(`\n\r\nlocalhost:${world.servicePort} ${asked}$`));
  });

  it("and nothing else where no mask is set", async () => {
    world.serve = (incoming, response) => response.end(hosts(incoming));
    assert.match(await exchange("GET", "/", [theirs]), /\r\n\r\n(\d+-\w+\.e2b\.test) \1$/);
  });
});
