import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createServer as createHttpServer } from "node:http";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import { after, before, describe, it } from "node:test";
import { NO_AGENT, withRealAgent } from "./testing/real-agent.ts";
import { aenv, type Result, TestIo } from "./testing/run.ts";
import { KEY, type ServerDouble } from "./testing/server.ts";

/** The agent is a process of this machine: its loopback is ours. */
describe("port-forward", { skip: NO_AGENT, timeout: 60_000 }, () => {
  let server: ServerDouble;
  const services: Server[] = [];
  before(async () => {
    server = await withRealAgent();
  });
  after(async () => {
    for (const each of services) each.close();
    await server[Symbol.asyncDispose]();
  });

  async function serve(service: Server, host = "127.0.0.1"): Promise<number> {
    services.push(service);
    service.listen(0, host);
    await once(service, "listening");
    return (service.address() as AddressInfo).port;
  }

  function tcp(onConnection: (socket: Socket) => void): Server {
    return createServer({ allowHalfOpen: true }, (socket) => onConnection(socket.on("error", () => {})));
  }

  async function forwarded(...words: string[]) {
    const { sandboxID: id } = server.add();
    const io = new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY } });
    const done = aenv(["port-forward", id, ...words, "--json"], io);
    await Promise.race([io.shows("stdout", "]"), done]);
    const text = io.text("stdout");
    const ports = text === "" ? [] : (JSON.parse(text) as { port: number }[]).map(({ port }) => port);
    const stop = async (): Promise<Result> => {
      io.signal("SIGINT");
      return await done;
    };
    return { id, io, done, ports, stop };
  }

  async function readAll(socket: Socket): Promise<Buffer> {
    return Buffer.concat(await socket.toArray());
  }

  it("carries any bytes, and each side's end by itself", async () => {
    const port = await serve(tcp((socket) => socket.pipe(socket)));
    const { ports, stop } = await forwarded(`:${port}`);
    const bytes = randomBytes(8 << 20);
    const socket = connect({ port: ports[0] ?? 0, host: "127.0.0.1", allowHalfOpen: true });
    // The echo ends only once it has seen our end.
    socket.end(bytes);
    assert.ok((await readAll(socket)).equals(bytes));
    const result = await stop();
    assert.deepEqual([result.code, result.stderr], [130, ""]);
    const [refused] = await once(connect({ port: ports[0] ?? 0, host: "127.0.0.1" }), "error");
    assert.equal(refused.code, "ECONNREFUSED", "it listens no more");
  });

  it("carries what a service says first, and what comes after its end", async () => {
    const heard = Promise.withResolvers<string>();
    const port = await serve(
      tcp((socket) => {
        socket.end("hello");
        void readAll(socket).then((all) => heard.resolve(all.toString()));
      }),
      "::1",
    );
    const { ports, stop } = await forwarded(`:${port}`);
    const socket = connect({ port: ports[0] ?? 0, host: "127.0.0.1", allowHalfOpen: true });
    assert.equal((await readAll(socket)).toString(), "hello");
    socket.end("last word");
    assert.equal(await heard.promise, "last word");
    await stop();
  });

  it("passes a break on as a break", async () => {
    const port = await serve(
      tcp((socket) => {
        socket.write("half of an ans", () => setTimeout(() => socket.resetAndDestroy(), 50));
      }),
    );
    const { ports, stop } = await forwarded(`:${port}`);
    const socket = connect({ port: ports[0] ?? 0, host: "127.0.0.1" });
    await assert.rejects(readAll(socket), { code: "ECONNRESET" });
    await stop();
  });

  it("serves many at once over several ports: HTTP and its upgrades", async () => {
    const web = createHttpServer((request, response) => response.end(`you asked for ${request.url}`));
    web.on("upgrade", (_request, socket, head) => {
      socket.on("error", () => {});
      socket.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
      socket.write(head);
      socket.pipe(socket);
    });
    const one = await serve(web);
    const two = await serve(tcp((socket) => socket.end("two")));
    const { ports, stop } = await forwarded(`0:${one}`, `:${two}`);
    const texts = await Promise.all(
      Array.from({ length: 50 }, async (_, at) => await (await fetch(`http://127.0.0.1:${ports[0]}/${at}`)).text()),
    );
    assert.deepEqual(
      texts,
      Array.from({ length: 50 }, (_, at) => `you asked for /${at}`),
    );
    assert.equal((await readAll(connect({ port: ports[1] ?? 0, host: "127.0.0.1" }))).toString(), "two");
    const socket = connect({ port: ports[0] ?? 0, host: "127.0.0.1" });
    socket.write("GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nping");
    let said = "";
    for await (const piece of socket) {
      said += piece;
      if (said.endsWith("ping")) break;
    }
    assert.match(said, /^HTTP\/1.1 101 /);
    socket.destroy();
    await stop();
  });

  it("says that nobody listens, and goes on listening itself", async () => {
    const closed = await serve(tcp(() => {}));
    services.pop()?.close();
    const { id, io, ports, stop } = await forwarded(`:${closed}`);
    const socket = connect({ port: ports[0] ?? 0, host: "127.0.0.1" });
    await assert.rejects(readAll(socket), { code: "ECONNRESET" });
    await io.shows("stderr", `aenv: nothing listens on port ${closed} in ${id}\n`);
    const late = tcp((each) => each.end("late"));
    services.push(late);
    late.listen(closed, "127.0.0.1");
    await once(late, "listening");
    assert.equal((await readAll(connect({ port: ports[0] ?? 0, host: "127.0.0.1" }))).toString(), "late");
    await stop();
  });

  it("says that the sandbox is paused; ends with it, its connections too", async () => {
    const port = await serve(tcp((socket) => socket.write("up")));
    const { id, io, done, ports } = await forwarded(`:${port}`);
    const held = connect({ port: ports[0] ?? 0, host: "127.0.0.1" });
    await once(held, "data");
    held.on("error", () => {});
    Object.assign(server.sandboxes.get(id) ?? {}, { state: "paused" });
    connect({ port: ports[0] ?? 0, host: "127.0.0.1" }).on("error", () => {});
    await io.shows("stderr", `${id} is paused; \`aenv resume ${id}\``);
    server.sandboxes.delete(id);
    connect({ port: ports[0] ?? 0, host: "127.0.0.1" }).on("error", () => {});
    const result = await done;
    assert.equal(result.code, 3);
    assert.match(result.stderr, /is gone: deleted, or its time was over\n$/);
    if (!held.closed) await new Promise((resolve) => held.once("close", resolve));
  });

  it("refuses what it cannot do before it listens to anything", async () => {
    const taken = await serve(tcp(() => {}));
    const free = await forwarded(":1", `${taken}:80`);
    const result = await free.done;
    assert.deepEqual([result.code, result.stdout], [4, ""]);
    assert.match(result.stderr, new RegExp(`port ${taken} of this machine is taken\\nhint: choose another`));
    for (const word of ["a:b", "1:2:3", "80:", "70000", ":0"]) {
      assert.equal((await (await forwarded(word)).done).code, 2, word);
    }
    const io = new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY } });
    assert.equal((await aenv(["port-forward", server.add("paused").sandboxID, "80"], io)).code, 4);
  });
});
