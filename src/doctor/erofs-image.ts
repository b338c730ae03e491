const BLOCK = 4096;
const SUPER_OFFSET = 1024;
const MAGIC = 0xe0f5e1e2;
/** Inode numbers count 32-byte places from the start of the metadata block: this one lies behind the superblock. */
const ROOT_NID = 40;
const S_IFDIR_755 = 0o40755;

/**
 * The smallest EROFS image there is: a superblock and an empty root folder, in one block. For trying whether this kernel mounts
 * such images. Layout as in the kernel's fs/erofs/erofs_fs.h; all numbers are little-endian.
 */
export function emptyErofsImage(): Uint8Array {
  const image = new Uint8Array(2 * BLOCK);
  const view = new DataView(image.buffer);
  view.setUint32(SUPER_OFFSET, MAGIC, true);
  view.setUint8(SUPER_OFFSET + 12, Math.log2(BLOCK));
  view.setUint16(SUPER_OFFSET + 14, ROOT_NID, true);
  view.setBigUint64(SUPER_OFFSET + 16, 1n, true); // inodes
  view.setUint32(SUPER_OFFSET + 36, 2, true); // blocks
  view.setUint32(SUPER_OFFSET + 40, 0, true); // metadata starts at block 0

  const inode = ROOT_NID * 32; // compact form, plain data
  view.setUint16(inode + 4, S_IFDIR_755, true);
  view.setUint16(inode + 6, 2, true); // links
  view.setUint32(inode + 8, 27, true); // size: two entries of 12 bytes and their names
  view.setUint32(inode + 16, 1, true); // data is block 1
  view.setUint32(inode + 20, 1, true); // inode number

  writeDots(view, BLOCK);
  return image;
}

/** The entries "." and "..": 12 bytes each, names behind. */
function writeDots(view: DataView, at: number): void {
  const DIRECTORY = 2;
  for (const [index, nameOffset] of [24, 25].entries()) {
    view.setBigUint64(at + index * 12, BigInt(ROOT_NID), true);
    view.setUint16(at + index * 12 + 8, nameOffset, true);
    view.setUint8(at + index * 12 + 10, DIRECTORY);
  }
  for (const offset of [24, 25, 26]) view.setUint8(at + offset, ".".charCodeAt(0));
}
