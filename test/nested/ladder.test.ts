import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { MIB, type Resources, type SandboxId, type SandboxSpec, type Snapshot } from "#domain";
import { eventually, patience } from "../../src/driver/testing/agent.ts";
import { TestNode } from "./node.ts";

const RESOURCES: Resources = { vcpus: 1, memoryBytes: 128 * MIB, diskBytes: 64 * MIB, pidsMax: 256 };
/** Less than there is between two readings of metrics: each takes an emulated machine more than an idle one may use. */
const IDLE_AFTER_MS = 2_000;
/** For one sandbox, two forks of it, and what makes way for them. */
const SLOTS = 3;
/** A shell that nobody listens to, whose memory tells one life from another. */
const SHELL = "kept";

describe("sandboxes in Firecracker's machines", { timeout: patience(120_000) }, () => {
  let node: TestNode;
  let template: Snapshot;
  let first: SandboxId;
  let second: SandboxId;

  before(async () => {
    node = await TestNode.start({
      idleAfterMs: IDLE_AFTER_MS,
      slotsReady: 1,
      slotsMax: SLOTS,
      memoryBudgetMib: 1024,
      startsAtOnce: 2,
      swapMaxMib: 0,
    });
    const request = {
      image: await node.importImage(),
      resources: RESOURCES,
      env: {},
      defaultUser: "root",
      commands: {},
    };
    template = await node.orchestrator.makeSnapshot(request, () => {}, new AbortController().signal);
  });
  after(() => node[Symbol.asyncDispose]());

  const stateOf = (id: SandboxId): string | undefined => node.orchestrator.get(id)?.state;
  const ready = () => node.orchestrator.stats().ready;
  const create = async (snapshot: Snapshot): Promise<SandboxId> =>
    (await node.orchestrator.create(specOf(snapshot), snapshot)).id;

  /** Gives it something to remember, in memory and on its disk. */
  async function remember(id: SandboxId, word: string): Promise<void> {
    const agent = await node.agentOf(id);
    await agent.openShell(SHELL);
    await agent.type(SHELL, `kept=${word}; echo ${word} >/root/kept; echo set-$kept`, `set-${word}`);
    agent.close();
  }

  async function assertRemembers(id: SandboxId, word: string): Promise<void> {
    const agent = await node.agentOf(id);
    await agent.type(SHELL, 'echo "got-$kept-$(cat /root/kept)"', `got-${word}-${word}`);
    agent.close();
  }

  test("one that is idle stands still, and goes on for whoever comes; a clone is ready for the next one", async () => {
    first = await create(template);
    await remember(first, "one");
    await eventually(10_000, () => assert.equal(stateOf(first), "frozen"));
    await assertRemembers(first, "one");
    await eventually(10_000, () => assert.equal(ready().clones, 1));
    second = await create(template);
    assert.deepEqual([ready().hotStarts, ready().coldStarts], [1, 1]);
    await remember(second, "two");
  });

  test("a paused one's frozen machine is kept for its return, and makes way for others: then it comes from its checkpoint", async () => {
    await node.orchestrator.pause(first);
    assert.equal(ready().copies, 1);
    await node.orchestrator.connect(first, 600_000);
    await assertRemembers(first, "one");
    await node.orchestrator.pause(first);
    assert.deepEqual([ready().warmResumes, ready().copies], [1, 1]);

    const forks = await node.orchestrator.fork(second, 2);
    const born = forks.map((fork) => ("sandbox" in fork ? fork.sandbox.id : assert.fail(fork.error)));
    assert.equal(ready().copies, 0);
    for (const id of born) await assertRemembers(id, "two");
    await Promise.all(born.map((id) => node.orchestrator.kill(id)));

    await node.orchestrator.connect(first, 600_000);
    await assertRemembers(first, "one");
    assert.deepEqual([ready().warmResumes, ready().coldResumes], [1, 1]);
  });

  test("a snapshot of one that goes on starts others; nothing is left of those that are killed", async () => {
    const snapshot = await node.orchestrator.snapshot(first, {});
    const copy = await create(snapshot);
    await assertRemembers(copy, "one");
    await assertRemembers(first, "one");
    await Promise.all([first, second, copy].map((id) => node.orchestrator.kill(id)));
    for (const { id } of [snapshot, template]) await node.orchestrator.deleteSnapshot(id);
    await eventually(10_000, async () => assert.deepEqual(await node.remains(), {}));
  });
});

function specOf(snapshot: Snapshot): SandboxSpec {
  return {
    templateId: "template000000000000",
    resources: snapshot.resources,
    env: {},
    metadata: {},
    network: { internet: false },
    timeoutMs: 600_000,
    onTimeout: "kill",
    autoResume: false,
    secure: false,
    defaultUser: "root",
  };
}
