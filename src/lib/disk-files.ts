/** A part of a file. */
export interface ByteRange {
  readonly offset: number;
  readonly length: number;
}

/**
 * Disks and memory of machines as files: large, full of holes, mostly like one another. Moved by the node's data process,
 * not by this one. Paths are absolute and clean. Errors of all: invalid, not-found, conflict, exhausted (the disk is full),
 * unavailable.
 */
export interface DiskFiles {
  /**
   * Makes a copy with the same size and holes, mode 0600, not on stable storage. `shared`: the two have their blocks in
   * common and nothing was copied; else `copiedBytes` of data were. The target appears whole, or not at all: after an error,
   * too. The source must not change meanwhile. Errors: conflict (the target exists).
   */
  copy(source: string, target: string): Promise<{ readonly shared: boolean; readonly copiedBytes: number }>;
  /**
   * Writes the data of sparse layers over the target, where several have some that of the last; where none has, what is there
   * stays. A layer has got its size before its data. Repeatable. Not on stable storage. Errors: conflict (sizes differ, or the
   * file system of a layer is too coarse to tell 4 KiB of data from holes; nothing is written). After another error the target
   * is of no use.
   */
  applyLayers(layers: readonly string[], target: string): Promise<void>;
  /**
   * Where the file has data, in order; the rest are holes and reads as zeros. At most 2^20 ranges: beyond that neighbours
   * become one, so that a range may hold small holes.
   */
  dataRanges(path: string): Promise<readonly ByteRange[]>;
  /** Where a file has data whose blocks are no other file's: of a copy that shared its blocks, what has been written since.
   *  At most as many ranges, likewise. */
  unsharedRanges(path: string): Promise<readonly ByteRange[]>;
  /** Makes files unchangeable: root's, mode 0444. Repeatable. Errors: conflict (one has not the size it has to have, or
   *  somebody still has it open for writing). */
  seal(files: readonly { readonly path: string; readonly sizeBytes?: number }[]): Promise<void>;
  /**
   * Makes one flat read-only EROFS file (mode 0444, on stable storage) of a directory; all in it belongs to root. Replaces
   * the target at once. Repeatable.
   */
  packDirectory(dir: string, target: string): Promise<void>;
}
