import { Agent } from "node:http";
import { create } from "@bufbuild/protobuf";
import { type Client, Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { AenvError, type ErrorKind, type Image, type ImageConfig, type ImageSource, type PullProgress } from "#domain";
import {
  Blobd,
  ImageConfigSchema,
  ImportRequest_Format,
  type PullResponse,
  type Image as WireImage,
} from "#gen/aenv/blobd/v1/blobd_pb.js";
import type { Store } from "./store.ts";

const KINDS: Partial<Record<Code, ErrorKind>> = {
  [Code.InvalidArgument]: "invalid",
  [Code.FailedPrecondition]: "conflict",
  [Code.NotFound]: "not-found",
  [Code.Unauthenticated]: "forbidden",
  [Code.PermissionDenied]: "forbidden",
  [Code.ResourceExhausted]: "exhausted",
  [Code.Unavailable]: "unavailable",
  [Code.Aborted]: "unavailable",
  [Code.DeadlineExceeded]: "deadline",
};

/** How long a call waits for a blobd that is being restarted. */
const RESTART_GRACE_MS = 10_000;

/** The store behind the blobd that listens on this unix socket. */
export function connectStore(socketPath: string): Store {
  const agent = new Agent({ keepAlive: true, maxSockets: 32 });
  const transport = createConnectTransport({
    baseUrl: "http://blobd",
    httpVersion: "1.1",
    nodeOptions: { agent, socketPath },
  });
  return new BlobdStore(createClient(Blobd, transport), agent);
}

class BlobdStore implements Store {
  readonly #client: Client<typeof Blobd>;
  readonly #agent: Agent;

  constructor(client: Client<typeof Blobd>, agent: Agent) {
    this.#client = client;
    this.#agent = agent;
  }

  async pull(
    source: ImageSource,
    leaseId: string,
    onProgress: (progress: PullProgress) => void,
    signal: AbortSignal,
  ): Promise<Image> {
    if (source.kind === "local") {
      const found = await call(() => this.#client.getImage({ digest: source.digest }));
      await call(() => this.#client.lease({ digest: source.digest, leaseId }));
      return imageOf(found.image);
    }
    const { reference, credentials } = source;
    return call(() =>
      lastImage(this.#client.pull({ reference, leaseId, ...(credentials && { credentials }) }, { signal }), onProgress),
    );
  }

  async importRootfsTar(path: string, config: ImageConfig, leaseId: string): Promise<Image> {
    const wire = create(ImageConfigSchema, {
      env: Object.entries(config.env).map(([name, value]) => `${name}=${value}`),
      entrypoint: [...config.entrypoint],
      cmd: [...config.cmd],
      user: config.user,
      workingDir: config.workingDir,
    });
    const format = ImportRequest_Format.ROOTFS_TAR;
    return call(() => lastImage(this.#client.import({ path, format, config: wire, leaseId }), () => {}));
  }

  async mount(digest: string, leaseId: string): Promise<string> {
    return (await call(() => this.#client.mount({ digest, leaseId }))).path;
  }

  async release(leaseId: string): Promise<void> {
    await call(() => this.#client.release({ leaseId }));
  }

  async leases(): Promise<string[]> {
    return (await call(() => this.#client.listLeases({}))).leaseIds;
  }

  async collect(): Promise<void> {
    await call(() => this.#client.collect({ dryRun: false }));
  }

  async sync(paths: readonly string[]): Promise<void> {
    await call(() => this.#client.sync({ paths: [...paths] }));
  }

  close(): void {
    this.#agent.destroy();
  }
}

/** Every call of blobd may be repeated, so a blobd that is being restarted is waited for. */
async function call<T>(work: () => Promise<T>): Promise<T> {
  const giveUpAtMs = performance.now() + RESTART_GRACE_MS;
  for (let delayMs = 20; ; delayMs = Math.min(delayMs * 2, 500)) {
    try {
      return await work();
    } catch (error) {
      if (!isConnectionLoss(error) || performance.now() > giveUpAtMs) throw translate(error);
    }
    await new Promise((resolve) => setTimeout(resolve, delayMs));
  }
}

const LOST = new Set(["ECONNREFUSED", "ENOENT", "ECONNRESET", "EPIPE", "UND_ERR_SOCKET"]);

function isConnectionLoss(error: unknown): boolean {
  const connect = ConnectError.from(error);
  const cause = connect.cause;
  return cause instanceof Error && "code" in cause && typeof cause.code === "string" && LOST.has(cause.code);
}

function translate(error: unknown): AenvError {
  const connect = ConnectError.from(error);
  return new AenvError(KINDS[connect.code] ?? "internal", connect.rawMessage, { cause: error });
}

async function lastImage(
  events: AsyncIterable<PullResponse>,
  onProgress: (progress: PullProgress) => void,
): Promise<Image> {
  let image: WireImage | undefined;
  for await (const event of events) {
    if (event.progress !== undefined) {
      const { phase, doneBytes, totalBytes, layersDone, layersTotal } = event.progress;
      onProgress({
        phase: phaseOf(phase),
        doneBytes: Number(doneBytes),
        totalBytes: Number(totalBytes),
        layersDone,
        layersTotal,
      });
    }
    if (event.image !== undefined) image = event.image;
  }
  return imageOf(image);
}

function phaseOf(text: string): PullProgress["phase"] {
  return text === "downloading" || text === "converting" || text === "done" ? text : "resolving";
}

function imageOf(wire: WireImage | undefined): Image {
  if (wire === undefined) throw new AenvError("internal", "blobd ended a pull without an image");
  const env: Record<string, string> = {};
  for (const entry of wire.config?.env ?? []) {
    const at = entry.indexOf("=");
    if (at > 0) env[entry.slice(0, at)] = entry.slice(at + 1);
  }
  return {
    digest: wire.digest,
    sizeBytes: Number(wire.sizeBytes),
    layers: wire.layers,
    config: {
      env,
      entrypoint: wire.config?.entrypoint ?? [],
      cmd: wire.config?.cmd ?? [],
      user: wire.config?.user ?? "",
      workingDir: wire.config?.workingDir ?? "",
    },
  };
}
