import assert from "node:assert/strict";
import { IS_EMULATED, patience, type TestAgent } from "./agent.ts";

const PORT = 7007;
const PERIOD_S = patience(100) / 1000;
/** An epoll server that holds what a copy of its files alone could not bring back: an open deleted file, a count in memory, a
 *  periodic timer. Sockets are those of the interpreter: the library around them takes longer to load than all else. */
const SERVER = `
import _socket, os, select, time
token = open("/tmp/live/token").read()
kept = open("/tmp/live/deleted", "w+"); kept.write(token); kept.flush(); os.unlink("/tmp/live/deleted")
listeners = {}
poll = select.epoll()
for family, address in ((_socket.AF_UNIX, "/tmp/live/sock"), (_socket.AF_INET, ("127.0.0.1", ${PORT}))):
    listener = _socket.socket(family, _socket.SOCK_STREAM); listener.bind(address); listener.listen(8)
    listeners[listener.fileno()] = listener; poll.register(listener.fileno(), select.EPOLLIN)
served = ticks = 0
due = time.monotonic() + ${PERIOD_S}
while True:
    for fd, _ in poll.poll(max(0, due - time.monotonic())):
        client, _ = listeners[fd]._accept()
        served += 1
        kept.seek(0)
        os.write(client, ("%s %d %d" % (kept.read(), served, ticks)).encode())
        os.close(client)
    if time.monotonic() >= due:
        ticks += 1
        due = time.monotonic() + ${PERIOD_S}
`;
/** A fork takes gVisor a tenth of a second where the processor is emulated, in each copy. */
const FORK_PERIOD_S = IS_EMULATED ? 4 : PERIOD_S;
/** Forks again and again, but leaves most of the time to others: it waits without a program, for starting one takes half a second
 *  where the processor is emulated. A number takes the place of the one before at once. */
const COUNTER = `exec bash -c '
exec 9<>/tmp/live/never; i=0
while :; do i=$((i+1)); (printf "%08d\\n" $i 1<>/tmp/live/count); read -t ${FORK_PERIOD_S} -u 9; done'`;
/** What it all says now, and later. Bash asks the server and waits by itself: to start a program takes half a second where the
 *  processor is emulated. */
const LOOK = `exec 9<>/tmp/live/never
rest() { read -t $1 -u 9; }
look() {
  until { read -r -d "" said </dev/tcp/127.0.0.1/${PORT}; set -- $said; [ $# -eq 3 ]; } 2>/dev/null; do rest 0.2; done
  until read -r count </tmp/live/count; do rest 0.2; done 2>/dev/null
  seen="$* $count"
}
look; before=$seen; [ "$1" = once ] && exit
for ((tries = 0; tries < 100; tries++)); do
  rest ${FORK_PERIOD_S}; look
  set -- $before $seen
  [ "$6" -gt "$2" ] && [ "$7" -gt "$3" ] && [ "$8" -gt "$4" ] && break
done
echo "$before"; echo "$seen"
unix='socket(S, 1, 1, 0); connect(S, pack("Sa108", 1, "/tmp/live/sock")); print <S>'
until set -- $(perl -e "$unix" 2>/dev/null); [ $# -eq 3 ]; do rest 0.2; done
echo "$1"`;
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
    // By the shell itself, as programs take long to start.
    const write = Object.entries({ token, "server.py": SERVER, "look.sh": LOOK }).map(
      ([name, text]) => `printf %s '${text.replaceAll("'", "'\\''")}' > /tmp/live/${name}`,
    );
    const written = await agent.run(["mkdir /tmp/live && mkfifo /tmp/live/never", ...write].join(" && "));
    assert.equal(written.exitCode, 0, written.stderr);
    await agent.spawn("exec python3 -IS /tmp/live/server.py");
    const live = new LiveState(agent, await agent.spawn(COUNTER), token);
    await agent.openShell(SHELL);
    await agent.type(SHELL, `kept=${token}; echo set-$kept`, `set-${token}`);
    await agent.run("exec bash /tmp/live/look.sh once");
    return live;
  }

  /** The same programs, as seen in another copy of the machine. */
  in(agent: TestAgent): LiveState {
    return new LiveState(agent, this.#counterPid, this.#token);
  }

  /** Asserts that every program goes on from where it was: same processes, same memory. */
  async assertGoesOn(): Promise<void> {
    const { stdout, stderr } = await this.#agent.run(
      `bash /tmp/live/look.sh; kill -0 ${this.#counterPid} && echo alive`,
    );
    const [before = [], after = [], bySocket = [], [alive] = []] = stdout.split("\n").map((line) => line.split(" "));
    for (const [token] of [before, after, bySocket]) {
      assert.equal(token, this.#token, `the open deleted file holds something else: ${stdout} ${stderr}`);
    }
    for (const [index, what] of ["the server's count", "the timer", "the counter"].entries()) {
      const [then, now] = [before[index + 1], after[index + 1]];
      assert.ok(Number(now) > Number(then), `${what} stands at ${now}, after ${then}`);
    }
    assert.equal(alive, "alive", "the counter is another process");
    await this.#agent.type(SHELL, "echo got-$kept", `got-${this.#token}`);
  }
}
