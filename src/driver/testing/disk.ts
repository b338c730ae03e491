import assert from "node:assert/strict";
import { rm } from "node:fs/promises";
import { test } from "node:test";
import { CheckpointError } from "../driver.ts";
import { type Finished, IS_EMULATED } from "./agent.ts";
import type { Bench, Started } from "./bench.ts";

/** Everything a disk can hold that is easily lost on the way: made by root in /work and beside it, over the image. */
const WRITE_ALL = `set -e
mkdir -p /work/deep/er && cd /work
echo text > file; : > empty; ln file hard; ln -s file soft; mkfifo pipe; mknod null c 1 3
printf odd > "$(printf 'n\\303\\244me with \\377 bytes')"; printf long > "$(printf %0200d 0)"
truncate -s 1M sparse; printf end >> sparse
chown 1234:4321 file; chmod 4711 file; chmod 1777 deep; touch -d @1000000000 file deep/er
echo appended >> /etc/profile; chmod 600 /etc/shells
rm /etc/issue; rm -r /etc/skel; mkdir /etc/skel; echo new > /etc/skel/only; mv /etc/profile.d /work/moved
echo kept > /var/tmp/kept; echo lost > /dev/shm/lost`;
/** For that not all of the image's thousands are looked at. */
const DEPTH = IS_EMULATED ? "-maxdepth 2" : "";
/** One line for each file below some folders, what the files hold, and times that were set, by as few programs as can be. Folders count
 *  their bytes and links as they like. */
const LIST_ALL = `cd /
find work etc var/tmp usr/local ${DEPTH} \\( -type d -printf '%p d %m %U:%G\\n' \\) -o -printf '%p %y %m %U:%G %s %n %l\\n'
find work var/tmp etc/profile etc/skel -type f -exec b2sum {} +
find work/file work/deep/er -maxdepth 0 -printf '%p %T@\\n'`;
/** An emulated processor takes minutes for more. */
const LARGE = IS_EMULATED ? "4M" : "100M";
/** Of one checkpoint. */
const COPIES = IS_EMULATED ? 1 : 2;
/** Two show what is left of the cycle before the last. */
const CYCLES = IS_EMULATED ? 1 : 2;
const BOOT_ID = "cat /proc/sys/kernel/random/boot_id";

/** Checkpoints of the disk alone, and machines that are booted from them. */
export function diskTests(
  bench: () => Bench,
  { disk: skip, state }: { readonly disk?: string; readonly state?: string },
): void {
  test("a disk checkpoint boots machines with the files and nothing else, while the source goes on", {
    skip,
  }, async () => {
    const source = await bench().start();
    const agent = state === undefined ? source.agentOrFail() : undefined;
    if (agent !== undefined) assert.equal((await agent.run(WRITE_ALL)).stderr, "");
    await agent?.spawn("exec sleep 86400");
    const dir = bench().checkpointDir();
    await bench().checkpointDisk(source, dir, { keepRunning: true });
    const before = agent && listed(await agent.run(LIST_ALL));
    const booted = await Promise.all(Array.from({ length: COPIES }, () => bench().bootFrom(dir)));
    // What a boot needs it has, or holds.
    await rm(dir, { recursive: true });
    if (agent !== undefined) {
      for (const { agentOrFail } of booted) {
        assert.deepEqual(listed(await agentOrFail().run(LIST_ALL)), before);
        const { stdout } = await agentOrFail().run("pgrep -c sleep; ls /dev/shm; df --output=size -B1 / | tail -n 1");
        const [sleeping, ...rest] = stdout.split("\n");
        assert.deepEqual([sleeping, rest.length], ["0", 1], stdout);
      }
      const ids = await Promise.all(
        [source, ...booted].map(async (each) => (await each.agentOrFail().run(BOOT_ID)).stdout),
      );
      assert.equal(new Set(ids).size, 1 + COPIES, ids.join(" "));
      assert.equal((await agent.run("pgrep -c sleep")).stdout, "1");
    }
    await Promise.all([source, ...booted].map(({ machine }) => machine.stop()));
    assert.deepEqual(await bench().driver.leftovers(), []);
  });

  test("SNAP-13: what was written just before is in the disk checkpoint", { skip: skip ?? state }, async () => {
    const source = await bench().start();
    const written = await source
      .agentOrFail()
      .run(`head -c ${LARGE} /dev/urandom > /srv/large && echo small > /srv/small && sha256sum /srv/large /srv/small`);
    // A program that never stops writing must not be able to spoil what others have written.
    await source.agentOrFail().spawn("while :; do echo line >> /srv/log; mkdir -p /srv/dir; rm -r /srv/dir; done");
    await source.agentOrFail().run("until [ -s /srv/log ]; do sleep 0.02; done");
    const dir = bench().checkpointDir();
    await bench().checkpointDisk(source, dir, { keepRunning: false });
    assert.deepEqual(await bench().driver.leftovers(), []);
    const { machine, agentOrFail } = await bench().bootFrom(dir);
    assert.equal((await agentOrFail().run("sha256sum /srv/large /srv/small")).stdout, written.stdout);
    assert.equal((await agentOrFail().run("sort /srv/log | uniq | tr '\\0' 0")).stdout, "line");
    assert.equal((await agentOrFail().run("rm -r /srv/* && touch /srv/new && ls /srv")).stdout, "new");
    await machine.stop();
  });

  test("LIFE-08: a machine booted from a disk, of a paused one too, is checkpointed, and booted, and restored as any other", {
    skip,
  }, async () => {
    let current: Started = await bench().start();
    const expected = new Map<string, string>();
    for (let cycle = 1; cycle <= CYCLES; cycle += 1) {
      if (state === undefined) {
        const said = await current.agentOrFail().run(
          `mkdir -p /srv/c && cd /srv/c && echo ${cycle} > new-${cycle} && echo ${cycle} > same && mkdir dir-${cycle} &&
           { [ ! -e new-${cycle - 1} ] || mv new-${cycle - 1} moved-${cycle}; } && rm -rf dir-${cycle - 1}`,
        );
        assert.equal(said.stderr, "");
        expected
          .set(`moved-${cycle}`, `${cycle - 1}`)
          .set("same", `${cycle}`)
          .set(`new-${cycle}`, `${cycle}`);
        expected.delete(`new-${cycle - 1}`);
        if (cycle === 1) expected.delete("moved-1");
      }
      const dir = bench().checkpointDir();
      if (cycle === 1) await checkpointPaused(bench(), current, dir);
      else await bench().checkpointDisk(current, dir, { keepRunning: false });
      current = await bench().bootFrom(dir);
    }
    const full = bench().checkpointDir();
    await current.machine.checkpoint(full, { keepRunning: true });
    const restored = await bench().restore(full);
    if (state === undefined) {
      const lines = [...expected].map(([name, text]) => `${name}:${text}`).sort();
      for (const { agentOrFail } of [current, restored]) {
        const { stdout } = await agentOrFail().run(
          "cd /srv/c && grep -r '' . | sed 's/^..//' | LC_ALL=C sort; ls -d dir-*",
        );
        assert.deepEqual(stdout.split("\n"), [...lines, `dir-${CYCLES}`]);
      }
    }
    await Promise.all([current, restored].map(({ machine }) => machine.stop()));
  });

  test("a disk checkpoint that cannot be written, or is none, harms nothing", { skip }, async () => {
    const { machine, agent } = await bench().start();
    const dir = bench().checkpointDir();
    await machine.checkpoint(dir, { keepRunning: true });
    for (const keepRunning of [true, false]) {
      await assert.rejects(machine.checkpoint(dir, { keepRunning, capture: "disk" }), (error) => {
        assert.ok(error instanceof CheckpointError, String(error));
        return error.machineRuns;
      });
      await agent?.ready();
    }
    await machine.stop();
    await assert.rejects(bench().bootFrom(`${dir}-none`));
    assert.deepEqual(await bench().driver.leftovers(), []);
  });
}

/** A checkpoint of the disk of a paused machine, which leaves it paused; then it ends. */
async function checkpointPaused(bench: Bench, source: Started, dir: string): Promise<void> {
  await bench.freezeDisk(source);
  await source.machine.pause();
  await source.machine.checkpoint(dir, { keepRunning: true, capture: "disk" });
  assert.equal(await source.agent?.answers(300), source.agent && false);
  await source.machine.resume();
  await source.agent?.ready();
  await source.machine.stop();
}

/** The lines of `LIST_ALL`, which come in any order, without the files that are each machine's own. */
function listed({ stdout, stderr }: Finished): string[] {
  assert.equal(stderr, "");
  const lines = stdout.split("\n").filter((line) => !/^etc\/(?:host|resolv)/.test(line));
  assert.ok(lines.length > 100, stdout);
  return lines.sort();
}
