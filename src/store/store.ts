import type { Image, ImageConfig, ImageSource, PullProgress } from "#domain";

/**
 * This node's bytes, through `blobd`: images by digest, each one read-only folder when mounted. What is used is leased
 * first; what has no lease may vanish.
 */
export interface Store {
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
  mount(digest: string, leaseId: string): Promise<string>;
  /** Ends all that the lease holds. Repeatable. */
  release(leaseId: string): Promise<void>;
  leases(): Promise<string[]>;
  /** Deletes the images that no lease holds. */
  collect(): Promise<void>;
  /** Everything under the paths, and the names of the paths themselves, is on stable storage when this returns. */
  sync(paths: readonly string[]): Promise<void>;
  close(): void;
}
