import { randomUUID } from "node:crypto";
import { resolve } from "node:path";
import { AenvError } from "#domain";
import { IMPORT_LEASE } from "#orchestrator";
import { connectStore } from "#store";
import { dataPaths, loadConfig } from "../config.ts";

/** Makes an image of a root file system in a tar on this machine; prints `{"digest", "sizeBytes"}`. */
export async function run(argv: readonly string[]): Promise<number> {
  const { config, flags } = loadConfig(argv, { tar: { type: "string" } });
  if (typeof flags.tar !== "string") {
    throw new AenvError("invalid", "import needs --tar FILE", { hint: "example: aenvd import --tar rootfs.tar" });
  }
  const store = connectStore(dataPaths(config.dataDir).blobdSocket);
  try {
    const empty = { env: {}, entrypoint: [], cmd: [], user: "user", workingDir: "" };
    const image = await store.importRootfsTar(resolve(flags.tar), empty, IMPORT_LEASE + randomUUID());
    process.stdout.write(`${JSON.stringify({ digest: image.digest, sizeBytes: image.sizeBytes })}\n`);
    return 0;
  } finally {
    store.close();
  }
}
