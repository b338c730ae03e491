import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { existsSync, renameSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { CommandExitError, NotFoundError, Sandbox, SandboxError } from "e2b";
import { type Answer, assertOwnTokensOnly, call as callOf, type Detail, detailOf } from "./calls.ts";
import { assertNothingLost, sandboxProcess } from "./host.ts";
import { askThroughEdge, Live, OWN_ADDRESS_PORT, SERVICE_PORT } from "./live.ts";
import { newSandbox, output, useServer } from "./sdk.ts";
import { sharedServer, until } from "./server.ts";

async function call<T = { message: string }>(method: string, path: string, body?: unknown): Promise<Answer<T>> {
  return callOf<T>(await sharedServer(), method, path, body);
}

async function detail(id: string): Promise<Detail> {
  return detailOf(await sharedServer(), id);
}

/** What a fork gave, when all of it worked. */
async function forkOf(sandbox: Sandbox, count: number): Promise<Sandbox[]> {
  return (await sandbox.fork({ count })).map((result) => {
    assert.ok(result instanceof Sandbox, String(result));
    return result;
  });
}

async function isGone(id: string): Promise<boolean> {
  return (await call("GET", `/sandboxes/${id}`)).status === 404;
}

/** Every file below the home folder with its hash. */
function manifest(sandbox: Sandbox): Promise<string> {
  return output(sandbox, "find work -type f -exec sha256sum {} + | sort; find work -type d | sort");
}

describe("the life of a sandbox", { timeout: 600_000 }, () => {
  it("goes on with all its programs over two pauses and in forks (SNAP-08, SNAP-10, SNAP-11)", async () => {
    await using sandbox = await newSandbox();
    const { url } = await sharedServer();
    const live = await Live.start(sandbox);
    await live.assertGoesOn();
    for (const round of [1, 2]) {
      await sandbox.pause();
      await sandbox.connect();
      await live.assertGoesOn();
      for (const port of [SERVICE_PORT, OWN_ADDRESS_PORT]) {
        assert.ok((await askThroughEdge(url, sandbox, port)).pid > 1, `port ${port} after pause ${round}`);
      }
      await live.resync();
    }
    const forks = await forkOf(sandbox, 2);
    try {
      for (const fork of forks) {
        await live.in(fork).assertGoesOn();
        assert.ok((await askThroughEdge(url, fork, OWN_ADDRESS_PORT)).pid > 1);
      }
      await live.assertGoesOn();
    } finally {
      await Promise.all(forks.map((fork) => fork.kill()));
    }
  });

  it("has the host's clock after a pause and in a fork (SNAP-02)", async () => {
    await using sandbox = await newSandbox();
    const driftMs = async (of: Sandbox): Promise<number> =>
      Math.abs(Number(await output(of, "date +%s%3N")) - Date.now());
    await sandbox.pause();
    await sleep(3_000);
    await sandbox.connect();
    assert.ok((await driftMs(sandbox)) < 1_000, "after a resume");
    const [fork] = await forkOf(sandbox, 1);
    assert.ok(fork !== undefined);
    assert.ok((await driftMs(fork)) < 1_000, "in a fork");
    await fork.kill();
  });

  it("lets timers run out with the time it was paused for, and kills no command for it (SNAP-16)", async () => {
    await using sandbox = await newSandbox();
    const command = "s=$(date +%s); sleep 4; echo $(( $(date +%s) - s )) > slept";
    const sleeping = await sandbox.commands.run(command, { background: true, timeoutMs: 0 });
    sleeping.wait().catch(() => {});
    // It has to be seen: a pause that comes before it would have the whole sleep after it.
    await until("the sleep", async () => (await output(sandbox, "pgrep -cfx 'sleep 4' || true")) === "1");
    const limited = await sandbox.commands.run("while :; do echo on; sleep 0.1; done", {
      background: true,
      timeoutMs: 5_000,
    });
    limited.wait().catch(() => {});
    await sandbox.pause();
    await sleep(6_000);
    await sandbox.connect();
    // On gVisor the monotonic clock goes on over a pause: the sleep is over at once.
    await until("the end of the sleep", () => sandbox.files.exists("slept"), 3_000);
    assert.ok(Number(await sandbox.files.read("slept")) >= 6);
    assert.ok(
      (await sandbox.commands.list()).some(({ pid }) => pid === limited.pid),
      "a command's timeout counted the pause",
    );
  });

  it("keeps what was written before an automatic pause, as before one by hand (LIFE-07)", async () => {
    await using sandbox = await newSandbox({ lifecycle: { onTimeout: "pause" } });
    await sandbox.commands.run(
      "mkdir work; for i in $(seq 40); do head -c 65536 /dev/urandom > work/$i; done; cd work; sha256sum * > ../sums",
    );
    await sandbox.commands.run("i=0; while :; do echo $((i=i+1)) >> log; done", { background: true, timeoutMs: 0 });
    await sandbox.setTimeout(500);
    await until("the pause", async () => (await detail(sandbox.sandboxId)).state === "paused");
    await sandbox.connect();
    assert.match(await output(sandbox, "cd work && sha256sum --quiet -c ../sums && echo whole"), /whole/);
    await sandbox.commands.run("pkill -f 'echo [$]' || true");
    assert.equal(await output(sandbox, "cmp log <(seq $(wc -l < log)) && echo 'no hole'"), "no hole");
  });

  it("has every change after each of several cycles (LIFE-08)", async () => {
    await using sandbox = await newSandbox({ lifecycle: { onTimeout: "pause" } });
    await sandbox.commands.run("mkdir -p work/keep");
    for (let cycle = 0; cycle < 4; cycle += 1) {
      await sandbox.commands.run(
        `cd work; echo ${cycle} > new${cycle}; echo ${cycle} >> changed; mkdir dir${cycle}; head -c 300000 /dev/urandom > dir${cycle}/f
         [ -e new${cycle - 1} ] && mv new${cycle - 1} keep/renamed${cycle - 1}; rm -rf dir${cycle - 2}; ln -f changed keep/link; true`,
      );
      const before = await manifest(sandbox);
      if (cycle === 2) {
        await sandbox.setTimeout(0);
        await until("the pause", async () => (await detail(sandbox.sandboxId)).state === "paused");
      } else await sandbox.pause();
      await sandbox.connect({ timeoutMs: 60_000 });
      assert.equal(await manifest(sandbox), before, `cycle ${cycle}`);
    }
  });

  it("is not ended by its timeout while paused, and gets a new one with the resume (LIFE-10)", async () => {
    await using sandbox = await newSandbox({ timeoutMs: 2_000 });
    await sandbox.pause();
    await sleep(4_000);
    assert.equal((await detail(sandbox.sandboxId)).state, "paused");
    await sandbox.connect({ timeoutMs: 20_000 });
    const left = Date.parse((await detail(sandbox.sandboxId)).endAt) - Date.now();
    assert.ok(left > 17_000 && left <= 20_000, `${left} ms are left`);
    assert.equal(await output(sandbox, "echo here"), "here");
  });

  it("ends when it says it will: set-timeout, refresh, connect (LIFE-11)", async () => {
    await using sandbox = await newSandbox({ timeoutMs: 60_000 });
    const path = `/sandboxes/${sandbox.sandboxId}`;
    const endsInMs = async (): Promise<number> => Date.parse((await detail(sandbox.sandboxId)).endAt) - Date.now();
    assert.equal((await call("POST", `${path}/refreshes`, { duration: 10 })).status, 204);
    assert.ok((await endsInMs()) > 55_000);
    assert.equal((await call("POST", `${path}/connect`, { timeout: 5 })).status, 200);
    assert.ok((await endsInMs()) > 55_000);
    assert.equal((await call("POST", `${path}/refreshes`, { duration: 100 })).status, 204);
    assert.ok((await endsInMs()) > 95_000);
    assert.equal((await call("POST", `${path}/timeout`, { timeout: 2 })).status, 204);
    const { endAt } = await detail(sandbox.sandboxId);
    const listed = (await call<Detail[]>("GET", "/v2/sandboxes")).body.find(
      (one) => one.sandboxID === sandbox.sandboxId,
    );
    assert.equal(listed?.endAt, endAt);
    await until("the end", () => isGone(sandbox.sandboxId));
    const lateMs = Date.now() - Date.parse(endAt);
    assert.ok(lateMs >= 0 && lateMs < 3_000, `ended ${lateMs} ms after the time said`);
  });

  it("counts its time from when it was ready, and many end together", async () => {
    useServer(await sharedServer());
    const askedAtMs = Date.now();
    const born = await Promise.all(
      Array.from({ length: 20 }, (_, at) =>
        Sandbox.create("base", {
          timeoutMs: 30_000,
          ...(at % 5 === 0 && { lifecycle: { onTimeout: "pause" as const } }),
        }),
      ),
    );
    const ends = await Promise.all(born.map(async (one) => (await one.getInfo()).endAt.getTime()));
    assert.ok(Math.max(...ends) - 30_000 > askedAtMs + 100, "the wait for its turn was taken from its time");
    await Promise.all(born.map((one) => one.setTimeout(1_000)));
    const dueAtMs = Date.now() + 1_000;
    const states = async (): Promise<string[]> => {
      const all = (await call<Detail[]>("GET", "/v2/sandboxes?limit=100")).body;
      return all.filter((one) => born.some(({ sandboxId }) => sandboxId === one.sandboxID)).map((one) => one.state);
    };
    await until("the end of all", async () => (await states()).every((state) => state === "paused"));
    assert.ok(Date.now() - dueAtMs < 6_000, `the last ended ${Date.now() - dueAtMs} ms after its time`);
    assert.equal((await states()).length, 4);
    for (const one of born) await Sandbox.kill(one.sandboxId);
  });

  it("says what is wrong with a request for a paused one, and stays usable (LIFE-13)", async () => {
    await using sandbox = await newSandbox();
    const { sandboxId } = sandbox;
    await sandbox.pause();
    const noBody = await call("POST", `/sandboxes/${sandboxId}/connect`);
    assert.equal(noBody.status, 400);
    assert.match(noBody.body.message, /timeout|body/);
    const paused = await fetch(`${(await sharedServer()).url}/health`, {
      headers: { "E2b-Sandbox-Id": sandboxId, "E2b-Sandbox-Port": "49983" },
    });
    assert.equal(paused.status, 502);
    assert.match(((await paused.json()) as { message: string }).message, /not found/);
    assert.equal((await detail(sandboxId)).state, "paused");
    // Resume's body may be left out: the sandbox's own timeout holds.
    assert.equal((await call("POST", `/sandboxes/${sandboxId}/resume`)).status, 201);
    assert.equal((await call("POST", `/sandboxes/${sandboxId}/resume`)).status, 409);
    assert.equal(await output(sandbox, "echo usable"), "usable");
  });

  it("ends streams with a pause in order, and lets a command be taken up again (LIFE-14)", async () => {
    await using sandbox = await newSandbox();
    let seen = "";
    const counter = await sandbox.commands.run("i=0; while :; do echo $((i=i+1)); sleep 0.1; done", {
      background: true,
      timeoutMs: 0,
      onStdout: (text) => {
        seen += text;
      },
    });
    const ended = counter.wait().then(
      () => undefined,
      (error: unknown) => error,
    );
    await until("the first lines", () => seen.split("\n").length > 3);
    await sandbox.pause();
    const error = await Promise.race([ended, sleep(5_000, "it hangs")]);
    assert.ok(error instanceof SandboxError && !(error instanceof CommandExitError), String(error));
    assert.doesNotMatch(error.message, /JSON|parse|flag|premature/i);
    await sandbox.connect();
    assert.equal(await output(sandbox, "echo at once"), "at once");
    assert.ok((await sandbox.commands.list()).some(({ pid }) => pid === counter.pid));
    let more = "";
    const again = await sandbox.commands.connect(counter.pid, {
      onStdout: (text) => {
        more += text;
      },
    });
    const last = Number(seen.trim().split("\n").at(-1));
    await until("more lines", () => more.split("\n").length > last + 4);
    // What was said before is said again, and goes on without a gap.
    const counted = more.split("\n").slice(0, -1).map(Number);
    assert.deepEqual(
      counted,
      Array.from(counted, (_, at) => at + 1),
    );
    assert.equal(await again.kill(), true);
  });

  it("ends whatever is under way in it when it is killed (LIFE-16)", async () => {
    await using sandbox = await newSandbox();
    const failed = (what: string, work: Promise<unknown>): Promise<{ what: string; atMs: number; error: unknown }> =>
      work.then(
        () => ({ what, atMs: Date.now(), error: undefined }),
        (error: unknown) => ({ what, atMs: Date.now(), error }),
      );
    const watched = Promise.withResolvers<void>();
    await sandbox.files.watchDir("/home/user", () => {}, {
      timeoutMs: 0,
      onExit: (error) => watched.reject(error ?? new Error("no error was told")),
    });
    const server = await sharedServer();
    const upload = async (): Promise<void> => {
      const endless = new ReadableStream({
        async pull(controller) {
          await sleep(20);
          controller.enqueue(randomBytes(65_536));
        },
      });
      // The SDK sends only what it has in memory as a whole.
      const response = await fetch(`${server.url}/files?path=big`, {
        method: "POST",
        body: endless,
        duplex: "half",
        headers: {
          "E2b-Sandbox-Id": sandbox.sandboxId,
          "E2b-Sandbox-Port": "49983",
          "X-Access-Token": String((await detail(sandbox.sandboxId)).envdAccessToken),
          "Content-Type": "application/octet-stream",
        },
      });
      throw new Error(`answered ${response.status}: ${await response.text()}`);
    };
    const works = [
      failed("a command", sandbox.commands.run("sleep 60")),
      failed("an upload", upload()),
      failed("a watch", watched.promise),
    ];
    await sleep(700);
    const killedAtMs = Date.now();
    await Sandbox.kill(sandbox.sandboxId);
    for (const work of works) {
      const { what, atMs, error } = await Promise.race([
        work,
        sleep(10_000, { what: "one", atMs: 0, error: undefined }),
      ]);
      assert.ok(error instanceof Error, `${what} did not end with an error`);
      assert.ok(atMs - killedAtMs < 6_000, `${what} ended ${atMs - killedAtMs} ms after the kill`);
    }
  });

  it("is the same to its owner in all states (LIFE-17)", async () => {
    await using sandbox = await newSandbox({ metadata: { owner: "me" }, envs: { A: "1" } });
    const stable = async (): Promise<unknown> => {
      // The token is shown only while there is somebody to show it to.
      const { state: _, endAt: __, envdAccessToken: ___, ...rest } = await detail(sandbox.sandboxId);
      return rest;
    };
    const before = (await stable()) as Record<string, unknown>;
    assert.deepEqual(before.metadata, { owner: "me" });
    await sandbox.pause();
    assert.deepEqual(await stable(), before);
    const listed = (await call<Detail[]>("GET", "/v2/sandboxes?state=paused&metadata=owner%3Dme")).body;
    assert.deepEqual(
      listed.map((one) => [one.sandboxID, one.templateID, one.startedAt]),
      [[sandbox.sandboxId, before.templateID, before.startedAt]],
    );
    await sandbox.connect();
    assert.deepEqual(await stable(), before);
    assert.equal(await output(sandbox, "echo $A"), "1");
  });

  it("stays paused when it cannot be resumed, whole, until it can", async () => {
    await using sandbox = await newSandbox();
    await sandbox.files.write("/dev/shm/state", "kept");
    await sandbox.pause();
    const server = await sharedServer();
    const { dataDir } = server;
    // Its kept copy would be thawed.
    const copy = sandboxProcess(server, sandbox.sandboxId);
    process.kill(copy, "SIGKILL");
    await until("the end of the copy", () => !existsSync(join(dataDir, "machines", `${sandbox.sandboxId}-0001`)));
    const pages = join(dataDir, "checkpoints", `${sandbox.sandboxId}-0001`, "state", "pages.img");
    renameSync(pages, `${pages}.away`);
    assert.equal((await call("POST", `/sandboxes/${sandbox.sandboxId}/connect`, { timeout: 60 })).status, 500);
    assert.equal((await detail(sandbox.sandboxId)).state, "paused");
    // Whole by its description, and not what the runtime can read.
    writeFileSync(pages, Buffer.alloc(statSync(`${pages}.away`).size));
    assert.equal((await call("POST", `/sandboxes/${sandbox.sandboxId}/connect`, { timeout: 60 })).status, 500);
    assert.equal((await detail(sandbox.sandboxId)).state, "paused");
    renameSync(`${pages}.away`, pages);
    await sandbox.connect();
    assert.equal(await sandbox.files.read("/dev/shm/state"), "kept");
  });
});

describe("a fork", { timeout: 300_000 }, () => {
  it("opens to its own token only (SNAP-05)", async () => {
    await using parent = await newSandbox();
    const [child] = await forkOf(parent, 1);
    assert.ok(child !== undefined);
    try {
      await assertOwnTokensOnly(await sharedServer(), [parent.sandboxId, child.sandboxId]);
    } finally {
      await child.kill();
    }
  });

  it("is itself: own id, own name, its parent's environment and nobody else's (SNAP-07)", async () => {
    await using first = await newSandbox({ envs: { A: "1", B: "2" } });
    await using second = await newSandbox({ envs: { A: "3" } });
    const [child] = await forkOf(first, 1);
    assert.ok(child !== undefined);
    try {
      const who = "echo $A,$B,$E2B_SANDBOX_ID,$(hostname)";
      assert.equal(await output(second, who), `3,,${second.sandboxId},${second.sandboxId}`);
      assert.equal(await output(child, who), `1,2,${child.sandboxId},${child.sandboxId}`);
    } finally {
      await child.kill();
    }
  });

  it("is refused for what cannot be one, with nothing half made (SNAP-17)", async () => {
    await using sandbox = await newSandbox();
    const path = `/sandboxes/${sandbox.sandboxId}/fork`;
    const countAll = async (): Promise<number> => (await call<Detail[]>("GET", "/v2/sandboxes?limit=100")).body.length;
    const before = await countAll();
    for (const count of [0, -1, 1000, "x", 1.5])
      assert.equal((await call("POST", path, { count })).status, 400, `${count}`);
    await sandbox.pause();
    assert.equal((await call("POST", path, { count: 1 })).status, 409);
    assert.equal((await call("POST", "/sandboxes/i0000000000000000000/fork", {})).status, 404);
    assert.equal(await countAll(), before);
    await Sandbox.kill(sandbox.sandboxId);
    assert.equal((await call("POST", path, { count: 1 })).status, 404);
    await assert.rejects(sandbox.fork(), NotFoundError);
  });
});

describe("after all that", { timeout: 60_000 }, () => {
  it("the host holds what the server lists and nothing else", async () => {
    await assertNothingLost(await sharedServer());
  });
});
