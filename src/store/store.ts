import type { Image, ImageConfig, ImageSource, PullProgress } from "#domain";
import type { DiskFiles } from "#lib/disk-files";

/** An image that can be used, in both its forms. */
export interface MountedImage {
  /** The folder where its root file system is shown, read-only. */
  readonly dir: string;
  /** Its flat EROFS file, mode 0444, in a folder that is root's alone: another user sees it by a hard link. Owner and mode
   *  stay as they are, since all links share them. A link keeps the bytes when the image is collected. */
  readonly file: string;
}

/**
 * This node's bytes, through `blobd`: images by digest, each one read-only folder when mounted. What is used is leased
 * first; what has no lease may vanish.
 */
export interface Store {
  /** The files of machines on this node. */
  readonly files: DiskFiles;
  /** Brings an image here, or finds it, and leases it. Errors: invalid, not-found, unauthenticated, forbidden,
   *  unavailable, exhausted. */
  pull(
    source: ImageSource,
    leaseId: string,
    onProgress: (progress: PullProgress) => void,
    signal: AbortSignal,
  ): Promise<Image>;
  /** Makes an image of a root file system in a tar on this machine, and leases it. */
  importRootfsTar(path: string, config: ImageConfig, leaseId: string): Promise<Image>;
  /** Shows an image's root file system read-only and leases it. Repeatable. Errors: not-found. */
  mount(digest: string, leaseId: string): Promise<MountedImage>;
  /** Ends all that the lease holds. Repeatable. */
  release(leaseId: string): Promise<void>;
  leases(): Promise<string[]>;
  /** Deletes the images that no lease holds. */
  collect(): Promise<void>;
  /** Everything under the paths, and the names of the paths themselves, is on stable storage when this returns. */
  sync(paths: readonly string[]): Promise<void>;
  close(): void;
}
