import type { Client } from "@connectrpc/connect";
import type { Blobd } from "#gen/aenv/blobd/v1/blobd_pb.js";
import type { ByteRange, DiskFiles } from "#lib/disk-files";
import { call } from "./call.ts";

/** The files of machines, moved by blobd. */
export function diskFiles(client: Client<typeof Blobd>): DiskFiles {
  return {
    // A blobd that ended while it copied has left no target, so that copying may be tried again, too.
    copy: async (source, target) => {
      const { shared, copiedBytes } = await call(() => client.copyFile({ source, target }));
      return { shared, copiedBytes: Number(copiedBytes) };
    },
    applyLayers: async (layers, target) => {
      await call(() => client.applyLayers({ layers: [...layers], target }));
    },
    dataRanges: async (path) => {
      return rangesOf((await call(() => client.dataRanges({ path }))).ranges);
    },
    unsharedRanges: async (path) => {
      return rangesOf((await call(() => client.dataRanges({ path, unsharedOnly: true }))).ranges);
    },
    seal: async (files) => {
      const wanted = files.map(({ path, sizeBytes }) => ({
        path,
        ...(sizeBytes !== undefined && { sizeBytes: BigInt(sizeBytes) }),
      }));
      await call(() => client.sealFiles({ files: wanted }));
    },
    packDirectory: async (dir, target) => {
      await call(() => client.packDirectory({ dir, target }));
    },
  };
}

/** An offset and a length, 64 bits each. */
const RANGE_BYTES = 16;

function rangesOf(wire: Uint8Array): ByteRange[] {
  const view = new DataView(wire.buffer, wire.byteOffset, wire.byteLength);
  const numberAt = (at: number): number => Number(view.getBigUint64(at, true));
  const ranges: ByteRange[] = [];
  for (let at = 0; at < wire.byteLength; at += RANGE_BYTES) {
    ranges.push({ offset: numberAt(at), length: numberAt(at + 8) });
  }
  return ranges;
}
