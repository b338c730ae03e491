import { Agent } from "node:http";
import { type Client, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { Process } from "#gen/process/process_pb.js";

/** As the stock SDKs send every command: a login shell's. */
const SHELL = ["/bin/bash", "-l", "-c"] as const;

/** A plain client of a sandbox's agent, at its slot's address or through an edge; its connection is kept. */
export class GuestClient {
  readonly #agent = new Agent({ keepAlive: true });
  readonly #process: Client<typeof Process>;
  readonly #headers: Readonly<Record<string, string>>;

  /** `headers`: the agent's token, and the edge's where it is asked through one. */
  constructor(baseUrl: string, headers: Readonly<Record<string, string>>) {
    this.#headers = headers;
    this.#process = createClient(
      Process,
      createConnectTransport({
        baseUrl,
        httpVersion: "1.1",
        useBinaryFormat: false,
        acceptCompression: [],
        nodeOptions: { agent: this.#agent },
      }),
    );
  }

  /** Runs a command as the SDK does. Returns its output; throws when it fails. */
  async run(command: string): Promise<string> {
    let output = "";
    for await (const event of this.#start(command)) {
      if (event.case === "data" && event.value.output.case !== undefined) output += text(event.value.output.value);
      if (event.case !== "end") continue;
      if (event.value.exitCode === 0) return output;
      throw new Error(`"${command}" ended with ${event.value.exitCode}: ${output}`);
    }
    throw new Error(`nothing was said of the end of "${command}"`);
  }

  /** The output of a command as it comes, at the reader's pace. Throws when the command fails. */
  async *stdout(command: string): AsyncGenerator<Uint8Array> {
    for await (const event of this.#start(command)) {
      if (event.case === "data" && event.value.output.case === "stdout") yield event.value.output.value;
      if (event.case === "end" && event.value.exitCode !== 0)
        throw new Error(`"${command}" ended with ${event.value.exitCode}`);
    }
  }

  /** Starts a command that goes on, and waits for its first words. */
  async spawn(command: string): Promise<void> {
    for await (const event of this.#start(command)) if (event.case === "data") return;
    throw new Error(`"${command}" said nothing`);
  }

  close(): void {
    this.#agent.destroy();
  }

  async *#start(command: string) {
    const [cmd, ...args] = [...SHELL, command];
    const request = { process: { cmd, args, envs: {} }, stdin: false };
    for await (const { event } of this.#process.start(request, { headers: this.#headers })) {
      if (event !== undefined) yield event.event;
    }
  }
}

function text(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes);
}
