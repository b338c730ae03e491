import { Agent } from "node:http";
import { create } from "@bufbuild/protobuf";
import { type Client, createClient } from "@connectrpc/connect";
import { AenvError, type Image, type ImageConfig, type ImageSource, type PullProgress } from "#domain";
import {
  Blobd,
  ImageConfigSchema,
  ImportRequest_Format,
  type PullResponse,
  type Image as WireImage,
} from "#gen/aenv/blobd/v1/blobd_pb.js";
import type { DiskFiles } from "#lib/disk-files";
import { call } from "./call.ts";
import { diskFiles } from "./disk-files.ts";
import type { MountedImage, Store } from "./store.ts";
import { blobdTransport } from "./transport.ts";

/** The store behind the blobd that listens on this unix socket. */
export function connectStore(socketPath: string): Store {
  const agent = new Agent({ keepAlive: true, maxSockets: 32 });
  return new BlobdStore(createClient(Blobd, blobdTransport(socketPath, agent)), agent);
}

class BlobdStore implements Store {
  readonly files: DiskFiles;
  readonly #client: Client<typeof Blobd>;
  readonly #agent: Agent;

  constructor(client: Client<typeof Blobd>, agent: Agent) {
    this.#client = client;
    this.#agent = agent;
    this.files = diskFiles(client);
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

  async mount(digest: string, leaseId: string): Promise<MountedImage> {
    const { path, imagePath } = await call(() => this.#client.mount({ digest, leaseId }));
    return { dir: path, file: imagePath };
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
