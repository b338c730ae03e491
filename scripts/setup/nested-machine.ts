import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer, type Server } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { emulatorCommand } from "./nested-emulator.ts";
import { Stillness } from "./nested-stillness.ts";
import type { NestedSystem } from "./nested-system.ts";

/** How a run in the nested machine ended. */
export type NestedEnd =
  | { readonly how: "exited"; readonly code: number }
  /** The machine itself, or the emulator: says nothing of the tests. `kernel` is the end of what its kernel said. */
  | { readonly how: "broke" | "timed out"; readonly why: string; readonly kernel: readonly string[] };

export interface NestedRunEnd {
  readonly end: NestedEnd;
  /** Of a processor, that the emulator took: how long it took by the clock says more of what else ran. */
  readonly processorS: number;
}

export interface NestedMachineOptions {
  readonly system: NestedSystem;
  readonly runDisk: string;
  /** One of those on the disk. */
  readonly command: string;
  /** For sockets; short. */
  readonly dir: string;
  readonly timeoutMs: number;
  /** How far it gives way to the others, in steps of `nice`. */
  readonly nice?: number;
  /** After so long without a word and without work the machine has stopped for good; a minute where it is not said. */
  readonly stillMs?: number;
  /** Called with each line that the tests print. */
  readonly onLine: (line: string) => void;
}

export const NESTED_MEMORY_MIB = 3072;
const EXIT = /^(.*)NESTED-EXIT (\d+)$/;
/** What a kernel says when it is at its end, or our script in the initramfs. */
const BROKE = /\bBUG: |Kernel panic|Oops: |general protection fault|^NESTED: /;
/** For the kernel to say more, after the first line of that kind. */
const LAST_WORDS_MS = 2000;
const KERNEL_LINES = 60;
/** No test waits for as long. */
const STILL_MS = 60_000;

/**
 * Boots the machine, an emulated AMD processor with SVM, and waits for its end. One processor: with two, nested machines make
 * the emulated kernel fail now and then, and nothing gets faster.
 */
export async function runNestedMachine(options: NestedMachineOptions): Promise<NestedRunEnd> {
  const port = join(options.dir, "port");
  const { argv, env } = emulatorCommand(options.system.emulator);
  const nice = ["nice", "-n", String(options.nice ?? 0)];
  return await runEmulator([...nice, ...argv, ...qemuArguments(options, port)], port, { ...options, env });
}

/**
 * Runs a program that connects to the socket `port`, as which the machine's tests speak, and shows on its own output what the
 * machine's kernel says. It ends with this process, however that ends.
 */
export async function runEmulator(
  argv: readonly string[],
  port: string,
  options: Pick<NestedMachineOptions, "timeoutMs" | "stillMs" | "onLine"> & {
    readonly env?: Readonly<Record<string, string>>;
  },
): Promise<NestedRunEnd> {
  const server = createServer().listen(port);
  await once(server, "listening");
  const bound = ["--pdeathsig", "KILL", "--", ...argv];
  const emulator = spawn("setpriv", bound, {
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, ...options.env },
  });
  const { signal: late, abort } = deadline(options.timeoutMs);
  // Without a pid it could not be started, which its own event says.
  const stillness = new Stillness(emulator.pid ?? 0, options.stillMs ?? STILL_MS);
  try {
    const end = await ended(emulator, server, { late, stillness, onLine: options.onLine });
    return { end, processorS: stillness.processorS() };
  } finally {
    abort();
    stillness.close();
    server.close();
    // What it holds in memory and on disk is free once it has gone.
    if (emulator.kill("SIGKILL")) await once(emulator, "exit");
  }
}

interface Watch extends Pick<NestedMachineOptions, "onLine"> {
  readonly late: Promise<string>;
  readonly stillness: Stillness;
}

async function ended(emulator: ChildProcess, server: Server, { late, stillness, onLine }: Watch): Promise<NestedEnd> {
  const end = Promise.withResolvers<NestedEnd>();
  const kernel: string[] = [];
  const broke = (why: string): void => end.resolve({ how: "broke", why, kernel });
  for (const input of [emulator.stdout, emulator.stderr]) {
    if (input === null) continue;
    createInterface({ input }).on("line", (line) => {
      stillness.heard();
      kernel.push(line.trimEnd());
      if (kernel.length > KERNEL_LINES) kernel.shift();
      if (BROKE.test(line)) setTimeout(() => broke(line.trim()), LAST_WORDS_MS);
    });
  }
  server.once("connection", (input) => {
    input.on("error", () => {}); // the emulator's end tells more
    createInterface({ input }).on("line", (line) => {
      stillness.heard();
      const [, before = line, code] = EXIT.exec(line) ?? [];
      if (before !== "" || code === undefined) onLine(before);
      if (code !== undefined) end.resolve({ how: "exited", code: Number(code) });
    });
  });
  emulator.once("error", (error) => broke(error.message));
  emulator.once("close", (code, signal) => broke(`it ended before the tests did (${signal ?? code})`));
  void stillness.found.then(broke);
  void late.then((why) => end.resolve({ how: "timed out", why, kernel }));
  return await end.promise;
}

/** A promise that settles after a while, unless that is called off. */
function deadline(timeoutMs: number): { readonly signal: Promise<string>; abort(): void } {
  const late = Promise.withResolvers<string>();
  const timer = setTimeout(() => late.resolve(`no end after ${timeoutMs / 1000} s`), timeoutMs);
  return { signal: late.promise, abort: () => clearTimeout(timer) };
}

function qemuArguments({ system, runDisk, command }: NestedMachineOptions, port: string): string[] {
  const options: Readonly<Record<string, readonly string[]>> = {
    machine: ["q35"],
    accel: ["tcg,thread=multi,tb-size=1024"],
    cpu: ["EPYC,+svm"],
    smp: ["1"],
    m: [String(NESTED_MEMORY_MIB)],
    kernel: [system.kernel],
    initrd: [system.initramfs],
    append: [`${kernelCommandLine()} nested_command=${command}`],
    serial: ["stdio"],
    drive: [
      // Written to, but never for good.
      `file=${system.dataDisk},format=raw,if=none,id=data,snapshot=on,cache=unsafe`,
      `file=${runDisk},format=raw,if=none,id=run,readonly=on`,
    ],
    chardev: [`socket,id=port,path=${port}`],
    device: [
      ...["virtio-blk-pci,drive=data", "virtio-blk-pci,drive=run"],
      ...["virtio-serial-pci", "virtserialport,chardev=port", "virtio-rng-pci"],
    ],
  };
  const named = Object.entries(options).flatMap(([name, all]) => all.flatMap((value) => [`-${name}`, value]));
  return ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", ...named];
}

/** The emulated time stamp counter is the host's: told its frequency, the kernel need not measure it by an emulated timer. An
 *  emulator that waits for its processor is no reason for alarm. */
function kernelCommandLine(): string {
  const mhz = /^cpu MHz\s*: ([\d.]+)$/m.exec(readFileSync("/proc/cpuinfo", "utf8"))?.[1];
  const clock = mhz === undefined ? [] : [`tsc_early_khz=${Math.round(Number(mhz) * 1000)}`, "no_timer_check"];
  const quick = ["mitigations=off", "nokaslr", "nowatchdog", "init_on_alloc=0", "randomize_kstack_offset=off"];
  const light = ["hardened_usercopy=off", "lsm=capability", "audit=0", "cryptomgr.notests", "rcupdate.rcu_expedited=1"];
  return ["console=ttyS0", "panic=-1", "quiet", "tsc=reliable", ...quick, ...light, ...clock].join(" ");
}
