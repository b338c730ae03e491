import { spawn } from "node:child_process";
import { createSocket } from "node:dgram";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";

/** Of the loopback, so that the host's own name server is not in the way. */
const SERVER = "127.53.53.53";
const HEADER_BYTES = 12;

/** Programs for which every name below a domain, and no other, is this host. */
export class Names {
  readonly #domain: string;
  readonly #socket = createSocket("udp4");
  readonly #dir = mkdtempSync(join(tmpdir(), "aenv-names-"));

  private constructor(domain: string) {
    this.#domain = domain;
  }

  static async open(domain: string): Promise<Names> {
    const names = new Names(domain);
    writeFileSync(join(names.#dir, "resolv.conf"), `nameserver ${SERVER}\n`);
    names.#socket.on("message", (question, from) =>
      names.#socket.send(names.#answer(question), from.port, from.address),
    );
    names.#socket.bind(53, SERVER);
    await once(names.#socket, "listening");
    return names;
  }

  close(): void {
    this.#socket.close();
    rmSync(this.#dir, { recursive: true });
  }

  /** Runs a program as it is; only its resolver's file is another. Throws what it said when it fails. */
  async run(argv: readonly string[], env: Record<string, string | undefined>, signal: AbortSignal): Promise<string> {
    const mounted = `mount --bind "$0" /etc/resolv.conf && exec "$@"`;
    const command = ["--mount", "sh", "-c", mounted, join(this.#dir, "resolv.conf"), ...argv];
    const child = spawn("unshare", command, { env, signal, stdio: ["ignore", "pipe", "pipe"] });
    const [said, complaints, [exitCode, endedBy]] = await Promise.all([
      text(child.stdout),
      text(child.stderr),
      once(child, "exit"),
    ]);
    if (exitCode !== 0) throw new Error(`${argv.join(" ")} ended with ${exitCode ?? endedBy}: ${said}${complaints}`);
    return said;
  }

  /** Address 127.0.0.1 for type A of a name of the domain, nothing for other types, no such name for others. */
  #answer(question: Buffer): Buffer {
    const labels: string[] = [];
    let at = HEADER_BYTES;
    for (let length = question[at] ?? 0; length > 0; length = question[at] ?? 0) {
      labels.push(question.toString("latin1", at + 1, at + 1 + length));
      at += 1 + length;
    }
    const isOurs = labels.join(".").toLowerCase().endsWith(`.${this.#domain}`);
    const isAddress = isOurs && question.readUInt16BE(at + 1) === 1;
    const header = Buffer.from(question.subarray(0, HEADER_BYTES));
    header.writeUInt16BE(isOurs ? 0x8580 : 0x8583, 2);
    for (const [offset, count] of [1, isAddress ? 1 : 0, 0, 0].entries()) header.writeUInt16BE(count, 4 + 2 * offset);
    const asked = question.subarray(HEADER_BYTES, at + 5);
    // The name by a pointer to the question's, type A, class IN, a minute, four bytes.
    const record = Buffer.from([0xc0, HEADER_BYTES, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    return Buffer.concat([header, asked, ...(isAddress ? [record] : [])]);
  }
}
