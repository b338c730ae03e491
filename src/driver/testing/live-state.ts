import assert from "node:assert/strict";
import { eventually, type TestAgent } from "./agent.ts";

/** An epoll server that holds what a copy of its files alone could not bring back: an open deleted file, a count in memory, a
 *  periodic timer. */
const SERVER = `
import os, select, socket, tempfile, time
token = open("/tmp/live/token").read()
kept = open("/tmp/live/deleted", "w+"); kept.write(token); kept.flush(); os.unlink("/tmp/live/deleted")
listener = socket.socket(socket.AF_UNIX); listener.bind("/tmp/live/sock"); listener.listen(8)
poll = select.epoll(); poll.register(listener.fileno(), select.EPOLLIN)
served = ticks = 0
due = time.monotonic() + 0.1
while True:
    for fd, _ in poll.poll(max(0, due - time.monotonic())):
        client, _ = listener.accept()
        served += 1
        kept.seek(0)
        client.sendall(("%s %d %d" % (kept.read(), served, ticks)).encode())
        client.close()
    if time.monotonic() >= due:
        ticks += 1
        due = time.monotonic() + 0.1
`;
const CLIENT = `
import socket
s = socket.socket(socket.AF_UNIX); s.connect("/tmp/live/sock")
print(s.recv(1000).decode())
`;
const COUNTER =
  "i=0; while :; do i=$((i+1)); echo $i > /tmp/live/count.new; mv /tmp/live/count.new /tmp/live/count; sleep 0.05; done";
const SHELL = "live-shell";

/** Programs that run in a machine, and what they know. */
export class LiveState {
  readonly #agent: TestAgent;
  readonly #counterPid: number;
  readonly #token: string;

  private constructor(agent: TestAgent, counterPid: number, token: string) {
    this.#agent = agent;
    this.#counterPid = counterPid;
    this.#token = token;
  }

  static async start(agent: TestAgent): Promise<LiveState> {
    const token = `token-${Math.random().toString(36).slice(2)}`;
    for (const [name, text] of Object.entries({ token, "server.py": SERVER, "client.py": CLIENT })) {
      const encoded = Buffer.from(text).toString("base64");
      const written = await agent.run(`mkdir -p /tmp/live && echo ${encoded} | base64 -d > /tmp/live/${name}`);
      assert.equal(written.exitCode, 0, written.stderr);
    }
    await agent.spawn("exec python3 /tmp/live/server.py");
    const live = new LiveState(agent, await agent.spawn(COUNTER), token);
    await agent.openShell(SHELL);
    await agent.type(SHELL, `kept=${token}; echo set-$kept`, `set-${token}`);
    await live.#progress();
    return live;
  }

  /** The same programs, as seen in another copy of the machine. */
  in(agent: TestAgent): LiveState {
    return new LiveState(agent, this.#counterPid, this.#token);
  }

  /** Asserts that every program goes on from where it was: same processes, same memory. */
  async assertGoesOn(): Promise<void> {
    const before = await this.#progress();
    await eventually(10_000, async () => {
      const now = await this.#progress();
      assert.ok(now.count > before.count, `the counter stands at ${now.count}`);
      assert.ok(now.ticks > before.ticks, `the timer has stopped at ${now.ticks}`);
      assert.ok(now.served > before.served, "the server has lost its count");
    });
    const alive = await this.#agent.run(`kill -0 ${this.#counterPid}`);
    assert.equal(alive.exitCode, 0, "the counter is another process");
    await this.#agent.type(SHELL, "echo got-$kept", `got-${this.#token}`);
  }

  async #progress(): Promise<{ count: number; served: number; ticks: number }> {
    return eventually(10_000, async () => {
      const asked = await this.#agent.run("python3 /tmp/live/client.py && cat /tmp/live/count");
      assert.equal(asked.exitCode, 0, asked.stderr);
      const [token, served, ticks, count] = asked.stdout.split(/\s+/);
      assert.equal(token, this.#token, "the open deleted file holds something else");
      return { count: Number(count), served: Number(served), ticks: Number(ticks) };
    });
  }
}
