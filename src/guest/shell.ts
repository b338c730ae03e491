import { Agent } from "node:http";
import { type Client, Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { AenvError } from "#domain";
import { Process, type StartResponse } from "#gen/process/process_pb.js";
import { AGENT_PORT } from "./guest.ts";
import { LINE_MAX_CHARS, LineSplitter } from "./lines.ts";

export type Stream = "stdout" | "stderr";

export interface CommandEnd {
  /** 128 + signal when a signal ended it. */
  readonly exitCode: number;
  /** As the agent words it: `exit status 3`, `signal: killed`. */
  readonly status: string;
}

/** The first that an image has runs a command. Login shells, as E2B's. */
const SHELLS = ["/bin/bash", "/bin/sh"] as const;
/** The agent sends output in pieces of 32 KiB. */
const MESSAGE_MAX_BYTES = 1024 * 1024;
const STATUS_MAX_CHARS = 200;
const REFUSALS: readonly Code[] = [Code.InvalidArgument, Code.NotFound, Code.PermissionDenied, Code.Unauthenticated];

/** Runs shell commands in a machine, as its default user in its default folder. */
export class GuestShell {
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 4 });
  readonly #client: Client<typeof Process>;
  readonly #headers: Readonly<Record<string, string>>;

  /** `accessToken`: of an agent that has been told to ask for one. */
  constructor(hostAddress: string, accessToken?: string) {
    const baseUrl = `http://${hostAddress}:${AGENT_PORT}`;
    // Whoever has root inside may answer in the agent's place: what is taken of it is bounded.
    const bounds = { readMaxBytes: MESSAGE_MAX_BYTES, acceptCompression: [] };
    const nodeOptions = { agent: this.#agent };
    const transport = createConnectTransport({ baseUrl, httpVersion: "1.1", nodeOptions, ...bounds });
    this.#client = createClient(Process, transport);
    this.#headers = accessToken === undefined ? {} : { "X-Access-Token": accessToken };
  }

  /**
   * Runs a command to its end. Aborting ends the listening, not the command.
   * Errors: invalid (it cannot be started), unavailable (the agent is gone), what `signal` aborts with.
   */
  async run(command: string, onLine: (stream: Stream, line: string) => void, signal: AbortSignal): Promise<CommandEnd> {
    for (const shell of SHELLS) {
      try {
        return await this.#listen(shell, command, onLine, signal);
      } catch (error) {
        signal.throwIfAborted();
        if (!(error instanceof ConnectError)) throw error;
        if (isMissingShell(error, shell)) continue;
        const kind = REFUSALS.includes(error.code) ? "invalid" : "unavailable";
        throw new AenvError(kind, error.rawMessage.slice(0, LINE_MAX_CHARS), { cause: error });
      }
    }
    throw new AenvError("invalid", `the image has none of ${SHELLS.join(", ")}, which commands are run by`);
  }

  /** Ends all listening. Repeatable. */
  close(): void {
    this.#agent.destroy();
  }

  async #listen(
    shell: string,
    command: string,
    onLine: (stream: Stream, line: string) => void,
    signal: AbortSignal,
  ): Promise<CommandEnd> {
    const lines = {
      stdout: new LineSplitter((line) => onLine("stdout", line)),
      stderr: new LineSplitter((line) => onLine("stderr", line)),
    };
    const request = { process: { cmd: shell, args: ["-l", "-c", command] }, stdin: false };
    for await (const { event } of this.#client.start(request, { signal, headers: this.#headers })) {
      const end = take(event?.event, lines);
      if (end === undefined) continue;
      for (const each of Object.values(lines)) each.flush();
      return end;
    }
    throw new AenvError("unavailable", "the sandbox's agent lost the command");
  }
}

type Event = NonNullable<StartResponse["event"]>["event"];

function take(event: Event | undefined, lines: Readonly<Record<Stream, LineSplitter>>): CommandEnd | undefined {
  if (event?.case === "end")
    return { exitCode: event.value.exitCode, status: event.value.status.slice(0, STATUS_MAX_CHARS) };
  if (event?.case !== "data") return undefined;
  const { output } = event.value;
  if (output.case === "stdout" || output.case === "stderr") lines[output.case].add(output.value);
  return undefined;
}

function isMissingShell(error: ConnectError, shell: string): boolean {
  return error.code === Code.NotFound && error.rawMessage.includes(`'${shell}'`);
}
