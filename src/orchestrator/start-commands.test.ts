import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { AenvError, type StartEvent } from "#domain";
import type { MachineExit } from "#driver";
import type { CommandEnd, Stream } from "#guest";
import { runStartCommands, type StartDeps } from "./start-commands.ts";

const OK: CommandEnd = { exitCode: 0, status: "exit status 0" };
const FAILED: CommandEnd = { exitCode: 3, status: "exit status 3" };

/** A machine whose commands say and do what a test wants; those without a script run until nobody listens. */
class World {
  readonly events: StartEvent[] = [];
  readonly ran: string[] = [];
  readonly abort = new AbortController();
  readonly exited = Promise.withResolvers<MachineExit>();
  scripts: Record<string, { readonly lines?: readonly string[]; readonly end?: CommandEnd }> = {};
  listening = 0;

  run(commands: { startCmd?: string; readyCmd?: string }, readyWithinMs = 60_000): Promise<void> {
    const deps: StartDeps = {
      shell: { run: (command, onLine, signal) => this.#shell(command, onLine, signal) },
      machine: { exited: this.exited.promise },
      onEvent: (event) => this.events.push(event),
      signal: this.abort.signal,
      firstWordWithinMs: 10,
      readyWithinMs,
    };
    return runStartCommands(deps, commands);
  }

  async #shell(
    command: string,
    onLine: (stream: Stream, line: string) => void,
    signal: AbortSignal,
  ): Promise<CommandEnd> {
    signal.throwIfAborted();
    this.ran.push(command);
    const { lines = [], end } = this.scripts[command] ?? {};
    this.listening += 1;
    try {
      for (const line of lines) onLine("stderr", line);
      if (end !== undefined) return end;
      return await new Promise((_, reject) => {
        signal.addEventListener("abort", () => reject(signal.reason), { once: true });
      });
    } finally {
      this.listening -= 1;
    }
  }
}

test("the start command goes on when the ready command has ended well, and nobody listens to it any more", async () => {
  const world = new World();
  world.scripts = { serve: { lines: ["listening"] }, check: { end: OK } };
  await world.run({ startCmd: "serve", readyCmd: "check" });
  assert.deepEqual(world.events, [
    { kind: "starting" },
    { kind: "output", stream: "stderr", line: "listening" },
    { kind: "waiting", readyCmd: "check" },
    { kind: "ready" },
  ]);
  await new Promise(setImmediate);
  assert.equal(world.listening, 0);
});

/** This machine's shell, as the guest's is: its output comes when it comes. */
async function realShell(
  command: string,
  onLine: (stream: Stream, line: string) => void,
  signal: AbortSignal,
): Promise<CommandEnd> {
  const child = spawn("/bin/sh", ["-c", command], { stdio: ["ignore", "pipe", "pipe"], signal, killSignal: "SIGKILL" });
  for (const stream of ["stdout", "stderr"] as const)
    createInterface(child[stream]).on("line", (line) => onLine(stream, line));
  const [exitCode] = await once(child, "close");
  return { exitCode, status: `exit status ${exitCode}` };
}

test("what a real start command says first comes before the asking whether it is ready, however late it comes", async () => {
  const tell = async (startCmd: string, firstWordWithinMs: number): Promise<string[]> => {
    const told: string[] = [];
    const onEvent = (event: StartEvent): void =>
      void told.push(event.kind === "output" ? `${event.stream}: ${event.line}` : event.kind);
    const machine = { exited: new Promise<never>(() => {}) };
    const { signal } = new AbortController();
    const deps: StartDeps = { shell: { run: realShell }, machine, onEvent, signal, firstWordWithinMs };
    await runStartCommands(deps, { startCmd, readyCmd: "true" });
    return told;
  };
  const long = 30_000;
  assert.deepEqual(await tell("sleep 0.2; echo up; exec sleep 1000", long), [
    "starting",
    "stdout: up",
    "waiting",
    "ready",
  ]);
  assert.deepEqual(await tell("echo up >&2; exec sleep 1000", long), ["starting", "stderr: up", "waiting", "ready"]);
  // One that has ended will say nothing more, one that says nothing is not waited for.
  assert.deepEqual(await tell("true", long), ["starting", "waiting", "ready"]);
  assert.deepEqual(await tell("exec sleep 1000", 20), ["starting", "waiting", "ready"]);
});

test("without a ready command 20 s stand for it; without both there is nothing to do; a ready command may stand alone", async () => {
  const world = new World();
  world.scripts = { "sleep 20": { end: OK }, alone: { end: OK } };
  await world.run({ startCmd: "serve" });
  assert.deepEqual(world.ran.sort(), ["serve", "sleep 20"]);
  await world.run({});
  await world.run({ readyCmd: "alone" });
  assert.deepEqual(world.ran, ["serve", "sleep 20", "alone"]);
});

test("a start command that ends well has done its part, one that fails says how and its last lines", async () => {
  const world = new World();
  world.scripts = { forks: { end: OK }, check: { end: OK } };
  await world.run({ startCmd: "forks", readyCmd: "check" });
  world.scripts = { breaks: { lines: ["first", "no such port"], end: FAILED } };
  await assert.rejects(world.run({ startCmd: "breaks", readyCmd: "waits" }), {
    kind: "invalid",
    message: "start command failed: exit status 3\nfirst\nno such port",
  });
  await new Promise(setImmediate);
  assert.equal(world.listening, 0, "the ready command is listened to no more");
});

test("a template that is never ready says how its ready command ended", async () => {
  const world = new World();
  world.scripts = { check: { lines: ["refused"], end: FAILED } };
  await assert.rejects(world.run({ startCmd: "serve", readyCmd: "check" }, 30), {
    kind: "deadline",
    message: "the template is not ready after 0.03 s; the ready command: exit status 3\nrefused",
  });
  await assert.rejects(world.run({ startCmd: "serve", readyCmd: "hangs" }, 30), /it has not ended once$/);
  await new Promise(setImmediate);
  assert.equal(world.listening, 0);
});

test("a machine that ends, or a build that is stopped, ends the waiting", async () => {
  const lost = new World();
  const waiting = lost.run({ startCmd: "serve", readyCmd: "hangs" });
  lost.exited.resolve({ reason: "crashed", detail: "killed by signal 9" } as MachineExit);
  await assert.rejects(waiting, {
    kind: "unavailable",
    message: /ended while the template was started: killed by signal 9/,
  });
  const stopped = new World();
  const building = stopped.run({ startCmd: "serve", readyCmd: "hangs" });
  stopped.abort.abort(new AenvError("conflict", "the template was deleted"));
  await assert.rejects(building, { kind: "conflict", message: "the template was deleted" });
  const early = new World();
  early.abort.abort(new AenvError("conflict", "the template was deleted"));
  await assert.rejects(early.run({ startCmd: "serve", readyCmd: "hangs" }), { kind: "conflict" });
});
