import assert from "node:assert/strict";
import { type ChildProcess, execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { Cli } from "./cli.ts";
import { sharedServer } from "./server.ts";

/** Everything that the CLI does with a running sandbox besides the shell and plain exec. */
describe("the CLI with a running sandbox", { timeout: 180_000 }, () => {
  let aenv: Cli;
  let id: string;
  let here: string;
  before(async () => {
    aenv = new Cli(await sharedServer());
    id = await aenv.output("start", "base", "--detach", "--timeout", "600");
    here = mkdtempSync(join(tmpdir(), "aenv-cli-"));
  });
  after(async () => {
    rmSync(here, { recursive: true });
    await aenv.output("rm", id);
  });

  it("run: one command with its streams and code; nothing is left, also after Ctrl-C", async () => {
    const before = await aenv.output("ls", "-q");
    const done = await aenv.run(["run", "-e", "A=1", "base", "--", "sh", "-c", "cat; echo $A; echo err >&2; exit 7"], {
      stdin: "in ",
    });
    assert.deepEqual([done.code, done.stdout, done.stderr], [7, "in 1\n", "err\n"]);
    const typed = await aenv.onTerminal(
      ["run", "-it", "base", "--", "sh"],
      [
        ["expect", "$ "],
        ["send", "stty size; exit 5\r"],
        ["expect", "25 90"],
      ],
    );
    assert.deepEqual([typed.code, typed.restored], [5, true], typed.shown);
    const cut = await aenv.onTerminal(
      ["run", "base", "sh", "-c", "echo up; exec sleep 100"],
      [
        ["expect", "up"],
        ["send", "\x03"],
      ],
    );
    assert.deepEqual([cut.code, cut.restored], [130, true], cut.shown);
    assert.equal(await aenv.output("ls", "-q"), before);
  });

  it("exec -it, leave by Ctrl-P Ctrl-Q, ps, attach: the same process on another terminal", async () => {
    const left = await aenv.onTerminal(
      ["exec", "-it", "-w", "/tmp", id, "bash", "--norc"],
      [
        ["expect", "$ "],
        ["send", 'kept=yes; pwd; echo "$TERM"\r'],
        ["expect", "/tmp"],
        ["expect", "xterm"],
        ["send", "\x10\x11"],
      ],
    );
    assert.deepEqual([left.code, left.raw, left.restored], [0, true, true], left.shown);
    const pid = /aenv attach i\w+ (\d+) /.exec(left.shown)?.[1] ?? "";
    assert.match(await aenv.output("ps", id), new RegExp(`^ *PID +TAG +COMMAND\\n *${pid} +- +bash --norc$`));
    const back = await aenv.onTerminal(
      ["attach", id, pid],
      [
        ["send", "stty size; echo kept=$kept; exit 6\r"],
        ["expect", "kept=yes"],
      ],
    );
    assert.deepEqual([back.code, back.restored], [6, true], back.shown);
    const late = await aenv.run(["attach", id, pid]);
    assert.deepEqual([late.code, late.stdout.includes("kept=yes")], [6, true], "its end is kept for a while");
    assert.equal((await aenv.run(["attach", id, "999999"])).code, 125);
  });

  it("cp: a tree there and back is the same, and belongs to the sandbox's user", async () => {
    const src = join(here, "src");
    mkdirSync(join(src, "sub"), { recursive: true });
    writeFileSync(join(src, "sub", "odd ü\n'name'"), "odd");
    writeFileSync(Buffer.concat([Buffer.from(`${src}/`), Buffer.from([0xff, 0x41])]), "bytes");
    writeFileSync(join(src, "run"), "#!/bin/sh\necho ran\n");
    chmodSync(join(src, "run"), 0o750);
    symlinkSync("../run", join(src, "sub", "link"));
    assert.match((await aenv.run(["cp", src, `${id}:copy`])).stderr, /^Copied 4 files/);
    assert.equal(await aenv.output("exec", id, "copy/sub/link"), "ran");
    assert.equal(await aenv.output("exec", id, "stat", "-c", "%U %a", "copy/run"), "user 750");
    await aenv.output("cp", `${id}:copy`, join(here, "back"));
    execFileSync("diff", ["-r", "--no-dereference", src, join(here, "back")]);
    assert.equal((await aenv.run(["cp", src, `${id}:/none/x`])).code, 3);
    await aenv.output("cp", "-u", "root", join(src, "run"), `${id}:/etc/owned-by-root`);
    assert.equal(await aenv.output("exec", id, "stat", "-c", "%U %a", "/etc/owned-by-root"), "root 750");
  });

  it("cp: 16 MiB by name and by pipe are the same", async () => {
    const bytes = randomBytes(16 << 20);
    writeFileSync(join(here, "big"), bytes);
    await aenv.output("cp", join(here, "big"), `${id}:big`);
    assert.ok((await aenv.run(["cp", `${id}:big`, "-"])).bytes.equals(bytes));
    assert.equal((await aenv.run(["cp", "-", `${id}:piped`], { stdin: bytes })).code, 0);
    await aenv.output("cp", `${id}:piped`, join(here, "piped"));
    assert.ok(readFileSync(join(here, "piped")).equals(bytes));
    await aenv.output("exec", id, "rm", "big", "piped");
  });

  it("port-forward: HTTP and raw TCP to what listens on the sandbox's loopback only; says when nobody does", async () => {
    const program = `
import asyncio, sys
async def echo(r, w):
    while (piece := await r.read(65536)): w.write(piece); await w.drain()
    w.write(b"end"); w.close()
async def main():
    await asyncio.start_server(echo, "127.0.0.1", 7301)
    print("up", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())`;
    await aenv.run(["cp", "-", `${id}:/tmp/echo.py`], { stdin: program });
    const service = aenv.start(["exec", id, "python3", "/tmp/echo.py"]);
    const web = aenv.start([
      "exec",
      id,
      "python3",
      "-u",
      "-m",
      "http.server",
      "7300",
      "--bind",
      "127.0.0.1",
      "-d",
      "/etc",
    ]);
    const forward = aenv.start(["port-forward", id, ":7300", ":7301", ":7302", "--json"]);
    try {
      await shows(service, "up");
      await shows(web, "Serving");
      const [http, tcp, closed] = (JSON.parse(await shows(forward, "]")) as { port: number }[]).map(({ port }) => port);
      assert.match(await (await fetch(`http://127.0.0.1:${http}/passwd`)).text(), /^root:/);
      const bytes = randomBytes(4 << 20);
      const socket = connect({ port: tcp ?? 0, host: "127.0.0.1", allowHalfOpen: true });
      socket.end(bytes);
      assert.ok(Buffer.concat(await socket.toArray()).equals(Buffer.concat([bytes, Buffer.from("end")])));
      const refused = connect({ port: closed ?? 0, host: "127.0.0.1" });
      await assert.rejects(refused.toArray());
      forward.kill("SIGINT");
      const [code] = await once(forward, "close");
      assert.equal(code, 130);
    } finally {
      for (const each of [forward, service, web]) each.kill("SIGKILL");
    }
    await aenv.output("exec", id, "pkill", "python3");
  });

  it("url: what it prints works", async () => {
    const { url, headers } = JSON.parse(await aenv.output("url", id, "49983", "--json"));
    assert.equal((await fetch(new URL("health", url), { headers })).status, 204);
    const command = await aenv.output("url", id, "49983");
    assert.equal(execFileSync("sh", ["-c", `${command}health -s -o /dev/null -w '%{http_code}'`]).toString(), "204");
  });

  it("logs and metrics: what the server keeps; followed until the sandbox ends", async () => {
    const own = await aenv.output("start", "base", "--detach");
    const logs = aenv.start(["logs", "-f", own, "--json"]);
    const metrics = aenv.start(["metrics", "-f", own]);
    const ended = Promise.all([once(logs, "close"), once(metrics, "close")]);
    assert.ok(JSON.parse((await shows(logs, "\n")).split("\n")[0] ?? "").message);
    assert.match(await shows(metrics, "%"), /^TIME +CPU +MEMORY +CACHE +DISK\n\d{4}-.*%/);
    assert.ok(JSON.parse(await aenv.output("metrics", own, "--json"))[0].memTotal > 0);
    await aenv.output("rm", own);
    assert.deepEqual(
      (await ended).map(([code]) => code),
      [0, 0],
    );
    assert.equal((await aenv.run(["logs", "inobody"])).code, 3);
  });
});

/** What a program has printed when it has printed `text`; what it prints afterwards is dropped. */
async function shows(child: ChildProcess, text: string): Promise<string> {
  let shown = "";
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  child.stdout?.setEncoding("utf8");
  child.stdout?.on("data", (chunk: string) => {
    shown += chunk;
    if (shown.includes(text)) resolve(shown);
  });
  child.stdout?.once("end", () => reject(new Error(`ended without ${text}: ${shown}`)));
  return await promise;
}
