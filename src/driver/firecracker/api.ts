import { Agent, type IncomingMessage, request } from "node:http";

/** State of a VM, by Firecracker's own words. */
export type VmState = "Not started" | "Running" | "Paused";

export interface MachineConfig {
  readonly vcpu_count: number;
  readonly mem_size_mib: number;
  readonly track_dirty_pages: boolean;
}

export interface BootSource {
  readonly kernel_image_path: string;
  readonly initrd_path: string;
  readonly boot_args: string;
}

export interface Drive {
  readonly drive_id: string;
  readonly path_on_host: string;
  readonly is_root_device: false;
  readonly is_read_only: boolean;
}

export interface NetworkInterface {
  readonly iface_id: string;
  readonly host_dev_name: string;
  readonly guest_mac: string;
}

export interface SnapshotFiles {
  /** Device and processor state. */
  readonly statePath: string;
  readonly memoryPath: string;
}

const CALL_TIMEOUT_MS = 60_000;
/** Written is as much as the machine has memory, and Firecracker syncs it. */
const SNAPSHOT_TIMEOUT_MS = 600_000;
const MAX_ANSWER_CHARS = 65_536;

/** Firecracker refused a call: its status and its own words. */
export class FirecrackerError extends Error {
  readonly status: number;
  constructor(call: string, status: number, fault: string) {
    super(`Firecracker answered ${status} to ${call}: ${fault}`);
    this.name = "FirecrackerError";
    this.status = status;
  }
}

/**
 * The API of one Firecracker process (HTTP over a unix socket, Firecracker 1.12). All paths are as the process sees them,
 * from the root of its jail. Firecracker does one call after another.
 */
export class FirecrackerApi {
  readonly #socketPath: string;
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 1 });
  #calls = 0;

  constructor(socketPath: string) {
    this.#socketPath = socketPath;
  }

  /** How many calls have been made. */
  get calls(): number {
    return this.#calls;
  }

  async setMachine(config: MachineConfig): Promise<void> {
    await this.#call("PUT", "/machine-config", config);
  }

  async setBootSource(source: BootSource): Promise<void> {
    await this.#call("PUT", "/boot-source", source);
  }

  /** The guest sees drives in the order they were added. */
  async addDrive(drive: Drive): Promise<void> {
    await this.#call("PUT", `/drives/${drive.drive_id}`, drive);
  }

  async addNetwork(device: NetworkInterface): Promise<void> {
    await this.#call("PUT", `/network-interfaces/${device.iface_id}`, device);
  }

  /** Gives the guest a source of random numbers. */
  async addEntropy(): Promise<void> {
    await this.#call("PUT", "/entropy", {});
  }

  async start(): Promise<void> {
    await this.#call("PUT", "/actions", { action_type: "InstanceStart" });
  }

  async pause(): Promise<void> {
    await this.#call("PATCH", "/vm", { state: "Paused" });
  }

  async resume(): Promise<void> {
    await this.#call("PATCH", "/vm", { state: "Resumed" });
  }

  /** Preconditions: paused. `Diff` writes the pages written to since the last snapshot, and resets that record. */
  async createSnapshot(type: "Full" | "Diff", files: SnapshotFiles): Promise<void> {
    const body = { snapshot_type: type, snapshot_path: files.statePath, mem_file_path: files.memoryPath };
    await this.#call("PUT", "/snapshot/create", body, SNAPSHOT_TIMEOUT_MS);
  }

  /** Starts a machine from a snapshot, its memory mapped from the file. */
  async loadSnapshot(files: SnapshotFiles, options: { readonly trackDirtyPages: boolean }): Promise<void> {
    await this.#call(
      "PUT",
      "/snapshot/load",
      {
        snapshot_path: files.statePath,
        mem_backend: { backend_type: "File", backend_path: files.memoryPath },
        enable_diff_snapshots: options.trackDirtyPages,
        resume_vm: true,
      },
      SNAPSHOT_TIMEOUT_MS,
    );
  }

  /** Answers after a call under way, as one for a snapshot. Throws when nobody answers. */
  async state(timeoutMs = SNAPSHOT_TIMEOUT_MS): Promise<VmState> {
    const { state } = JSON.parse(await this.#call("GET", "/", undefined, timeoutMs)) as { state: VmState };
    return state;
  }

  close(): void {
    this.#agent.destroy();
  }

  async #call(method: string, path: string, body?: object, timeoutMs = CALL_TIMEOUT_MS): Promise<string> {
    this.#calls += 1;
    const text = body === undefined ? undefined : JSON.stringify(body);
    const response = await new Promise<IncomingMessage>((resolve, reject) => {
      const outgoing = request(
        {
          socketPath: this.#socketPath,
          agent: this.#agent,
          method,
          path,
          // It takes no chunked bodies.
          headers:
            text === undefined ? {} : { "content-type": "application/json", "content-length": Buffer.byteLength(text) },
          signal: AbortSignal.timeout(timeoutMs),
        },
        resolve,
      );
      outgoing.once("error", (cause) =>
        reject(new Error(`Firecracker did not answer ${method} ${path} at ${this.#socketPath}`, { cause })),
      );
      outgoing.end(text);
    });
    let answer = "";
    response.setEncoding("utf8");
    for await (const chunk of response) {
      answer += chunk;
      if (answer.length > MAX_ANSWER_CHARS) throw new Error(`Firecracker's answer to ${method} ${path} does not end`);
    }
    const status = response.statusCode ?? 0;
    if (status < 300) return answer;
    throw new FirecrackerError(`${method} ${path}`, status, faultOf(answer));
  }
}

function faultOf(answer: string): string {
  try {
    const { fault_message } = JSON.parse(answer) as { fault_message?: unknown };
    return typeof fault_message === "string" ? fault_message : answer;
  } catch {
    return answer;
  }
}
