import { createSocket } from "node:dgram";
import { createConnection, createServer } from "node:net";
import { text } from "node:stream/consumers";

/**
 * A program to put into a namespace.
 *
 *   peer.ts serve LABEL PORT…   TCP and UDP on 0.0.0.0: says `LABEL PEER-ADDRESS` and echoes; prints `ready`
 *   peer.ts talk HOST PORT      standard input and output are a TCP connection
 *   peer.ts flood HOST N TIMES  UDP packets from one port to N ports
 *   peer.ts churn HOST PORT N   TCP connections opened and closed, until N or for 4 s
 *   peer.ts probe               a JSON list of targets on stdin → a JSON list of what the server said, or why it did not
 */
export interface Target {
  readonly host: string;
  readonly port: number;
  /** Source address to claim. */
  readonly from?: string;
}

const PROBE_TIMEOUT_MS = 1000;

/** The first line the server sends, or an error code, or `timeout`. */
export async function probe({ host, port, from }: Target): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>();
  const socket = createConnection({ host, port, ...(from === undefined ? {} : { localAddress: from }) });
  socket.setTimeout(PROBE_TIMEOUT_MS, () => resolve("timeout"));
  socket.on("error", (error) => resolve("code" in error ? String(error.code) : error.message));
  socket.on("data", (data) => resolve(data.toString().trim()));
  socket.on("end", () => resolve("end"));
  const outcome = await promise;
  socket.destroy();
  return outcome;
}

async function serve(label: string, ports: readonly number[]): Promise<void> {
  const listening = ports.flatMap((port) => {
    const server = createServer((socket) => {
      socket.on("error", () => socket.destroy());
      socket.write(`${label} ${socket.remoteAddress}\n`);
      socket.pipe(socket);
    });
    const datagrams = createSocket("udp4");
    datagrams.on("message", (_, peer) => datagrams.send(`${label} ${peer.address}`, peer.port, peer.address));
    return [
      new Promise<void>((resolve) => server.listen(port, "0.0.0.0", resolve)),
      new Promise<void>((resolve) => datagrams.bind(port, "0.0.0.0", resolve)),
    ];
  });
  await Promise.all(listening);
  process.stdout.write("ready\n");
}

async function flood(host: string, ports: number, times: number): Promise<void> {
  const socket = createSocket("udp4");
  // Refusals are answered, which a later send reports.
  socket.on("error", () => {});
  for (let sent = 0; sent < ports * times; sent += 1) {
    await new Promise((resolve) => socket.send("flood", 1 + (sent % ports), host, resolve));
  }
  socket.close();
}

async function churn(target: Target, wanted: number): Promise<void> {
  const endMs = performance.now() + 4000;
  let opened = 0;
  const worker = async (): Promise<void> => {
    while (opened++ < wanted && performance.now() < endMs) await probe(target);
  };
  await Promise.all(Array.from({ length: 32 }, worker));
}

if (import.meta.main) {
  const [mode, name = "", ...numbers] = process.argv.slice(2);
  const [first = 0, second = 0] = numbers.map(Number);
  if (mode === "serve") {
    await serve(name, numbers.map(Number));
  } else if (mode === "talk") {
    const socket = createConnection({ host: name, port: first });
    process.stdin.pipe(socket).pipe(process.stdout);
  } else if (mode === "flood") {
    await flood(name, first, second);
  } else if (mode === "churn") {
    await churn({ host: name, port: first }, second);
  } else {
    const targets = JSON.parse(await text(process.stdin)) as Target[];
    process.stdout.write(JSON.stringify(await Promise.all(targets.map(probe))));
  }
}
