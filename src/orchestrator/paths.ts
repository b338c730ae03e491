import { join } from "node:path";

/** Where a node keeps what it holds for its sandboxes. Listed in docs/formats.md. */
export class NodePaths {
  readonly agents: string;
  readonly snapshots: string;
  readonly checkpoints: string;
  readonly telemetry: string;

  constructor(dataDir: string) {
    this.agents = join(dataDir, "agents");
    this.snapshots = join(dataDir, "snapshots");
    this.checkpoints = join(dataDir, "checkpoints");
    this.telemetry = join(dataDir, "telemetry");
  }

  agent(digest: string): string {
    return join(this.agents, digest);
  }
  snapshot(id: string): string {
    return join(this.snapshots, id);
  }
  checkpoint(machineId: string): string {
    return join(this.checkpoints, machineId);
  }
}
