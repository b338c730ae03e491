import assert from "node:assert/strict";
import type { CommandHandle, Sandbox } from "e2b";
import { INNER_ADDRESS } from "#network";
import { output } from "./sdk.ts";
import { until } from "./start.ts";

/** Of the service on every address, and of the one bound to the sandbox's own. */
export const SERVICE_PORT = 7001;
export const OWN_ADDRESS_PORT = 7002;

/**
 * A program with much in memory and in the kernel: asyncio servers on TCP (any address; the sandbox's own), on a named and
 * on an abstract unix socket, a ticking task, a file that is open and deleted, another whose name has been taken anew. Each
 * connection gets all of it as JSON, over HTTP.
 */
const PROGRAM = `
import asyncio, json, os
ticks = hits = 0
def opened(name):
    f = open(name, "w+"); f.write("kept"); f.flush(); os.unlink(name); return f
deleted, replaced = opened("deleted"), opened("replaced")
open("replaced", "w").write("new")
def content(f):
    f.seek(0, 2); f.write("."); f.flush(); f.seek(0); return f.read()
async def tick():
    global ticks
    while True:
        ticks += 1
        await asyncio.sleep(0.05)
async def answer(reader, writer):
    global hits
    while True:
        while (await reader.readline()).strip(): pass
        if reader.at_eof(): return writer.close()
        hits += 1
        body = json.dumps(dict(pid=os.getpid(), hits=hits, ticks=ticks, deleted=content(deleted), replaced=content(replaced))).encode()
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
        await writer.drain()
async def main():
    asyncio.create_task(tick())
    await asyncio.start_unix_server(answer, "/tmp/live.sock")
    await asyncio.start_unix_server(answer, "\\0live")
    await asyncio.start_server(answer, "0.0.0.0", ${SERVICE_PORT})
    await asyncio.start_server(answer, "${INNER_ADDRESS}", ${OWN_ADDRESS_PORT})
    print("ready", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
`;

/** Asks over all four ways from inside; one line of JSON each. */
const ASK = `
import socket
def ask(family, address):
    s = socket.socket(family); s.settimeout(5); s.connect(address); s.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
    print(s.recv(65536).split(b"\\r\\n\\r\\n")[1].decode())
ask(socket.AF_UNIX, "/tmp/live.sock"); ask(socket.AF_UNIX, "\\0live")
ask(socket.AF_INET, ("127.0.0.1", ${SERVICE_PORT})); ask(socket.AF_INET, ("${INNER_ADDRESS}", ${OWN_ADDRESS_PORT}))
`;

interface Answer {
  readonly pid: number;
  readonly hits: number;
  readonly ticks: number;
  readonly deleted: string;
  readonly replaced: string;
}

/** Programs in a sandbox that must not notice that it was paused, forked, or that the server under it was restarted. */
export class Live {
  readonly #sandbox: Sandbox;
  readonly #pids: { readonly counter: number; readonly shell: number; readonly program: number };
  #last: Answer;

  private constructor(sandbox: Sandbox, pids: { counter: number; shell: number; program: number }, last: Answer) {
    this.#sandbox = sandbox;
    this.#pids = pids;
    this.#last = last;
  }

  static async start(sandbox: Sandbox): Promise<Live> {
    await sandbox.files.write("live.py", PROGRAM);
    await sandbox.files.write("ask.py", ASK);
    const counter = await sandbox.commands.run(
      "n=0; while :; do n=$((n+1)); echo $n; echo $n >counted; sleep 0.05; done",
      {
        background: true,
        timeoutMs: 0,
      },
    );
    const program = await sandbox.commands.run("exec python3 -u live.py", { background: true, timeoutMs: 0 });
    await until("the program", () => program.stdout.includes("ready"));
    const shell = await sandbox.pty.create({ cols: 80, rows: 24, onData: () => {}, timeoutMs: 0 });
    await sandbox.pty.sendInput(shell.pid, new TextEncoder().encode("KEPT=in-memory\n"));
    const pids = { counter: counter.pid, shell: shell.pid, program: program.pid };
    for (const handle of [counter, program, shell]) forget(handle);
    return new Live(sandbox, pids, (await askAll(sandbox)).at(-1) as Answer);
  }

  /** The same programs in another sandbox, one that was forked from this one. */
  in(sandbox: Sandbox): Live {
    return new Live(sandbox, this.#pids, this.#last);
  }

  /** Everything is there, with the same processes, and moves on. */
  async assertGoesOn(): Promise<void> {
    const answers = await askAll(this.#sandbox);
    assert.equal(answers.length, 4);
    for (const answer of answers) {
      assert.equal(answer.pid, this.#last.pid);
      assert.equal(answer.hits, this.#last.hits + 1, "a connection was counted twice, or not at all");
      assert.equal(answer.deleted, `${this.#last.deleted}.`);
      assert.equal(answer.replaced, `${this.#last.replaced}.`);
      assert.ok(answer.ticks >= this.#last.ticks);
      this.#last = answer;
    }
    assert.equal(await output(this.#sandbox, "cat replaced"), "new");
    await this.#counts();
    await this.#types();
    const { ticks } = this.#last;
    await this.resync();
    assert.ok(this.#last.ticks > ticks, "the program does not tick");
  }

  /** Takes in what others have asked the program meanwhile. */
  async resync(): Promise<void> {
    this.#last = (await askAll(this.#sandbox)).at(-1) ?? this.#last;
  }

  async #counts(): Promise<void> {
    // What is said again on connecting ends here.
    const before = Number(await output(this.#sandbox, "until [ -s counted ]; do :; done; cat counted"));
    let seen = "";
    const counter = await this.#sandbox.commands.connect(this.#pids.counter, {
      onStdout: (text) => {
        seen += text;
      },
      timeoutMs: 0,
    });
    const numbers = (): number[] => seen.trim().split("\n").slice(1, -1).map(Number);
    await until("the counter", () => (numbers().at(-1) ?? 0) > before + 1);
    await counter.disconnect();
    assert.ok(
      numbers().every((number, at, all) => at === 0 || number === (all[at - 1] ?? 0) + 1),
      `counted ${numbers()}`,
    );
  }

  async #types(): Promise<void> {
    let seen = "";
    const shell = await this.#sandbox.pty.connect(this.#pids.shell, {
      onData: (bytes) => {
        seen += new TextDecoder().decode(bytes);
      },
      timeoutMs: 0,
    });
    // Earlier answers are said again on connecting.
    const mark = crypto.randomUUID();
    await this.#sandbox.pty.sendInput(this.#pids.shell, new TextEncoder().encode(`echo ${mark}-$KEPT; tty\n`));
    await until("the shell's answer", () => seen.includes(`${mark}-in-memory\r\n/dev/pts/0`));
    await shell.disconnect();
  }
}

async function askAll(sandbox: Sandbox): Promise<Answer[]> {
  return (await output(sandbox, "python3 ask.py")).split("\n").map((line) => JSON.parse(line) as Answer);
}

/** The stream of a handle ends with the incarnation; nobody waits for it. */
function forget(handle: CommandHandle): void {
  handle.wait().catch(() => {});
}

/** Asks a service inside through the edge. */
export async function askThroughEdge(url: string, sandbox: Sandbox, port: number): Promise<Answer> {
  const headers = { "E2b-Sandbox-Id": sandbox.sandboxId, "E2b-Sandbox-Port": String(port) };
  const response = await fetch(url, { headers, signal: AbortSignal.timeout(10_000) });
  assert.equal(response.status, 200);
  return (await response.json()) as Answer;
}
