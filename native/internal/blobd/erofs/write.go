package erofs

import (
	"bufio"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"

	"aenv/native/internal/blobd/sparse"
)

const (
	superMagic          = 0xE0F5E1E2
	compatChecksum      = 0x1
	compatMtime         = 0x2
	formatExtendedPlain = 1
)

// roomyWriter asks before each write.
type roomyWriter struct {
	out  io.Writer
	room sparse.Room
}

func (w roomyWriter) Write(p []byte) (int, error) {
	if err := w.room(int64(len(p))); err != nil {
		return 0, err
	}
	return w.out.Write(p)
}

// Write lays the tree out in out, an empty file, with file data taken from the spools. id becomes the volume's UUID.
// Write does not sync. Each spool is emptied when its data has been copied, so that the peak of disk use is the image
// and one spool. room may be nil.
//
// Preconditions: names, attributes and data positions are valid; spools hold each file at a multiple of 4096.
func Write(ctx context.Context, out *os.File, root *Inode, spools []*os.File, id [16]byte, room sparse.Room) (sizeBytes int64, err error) {
	if room == nil {
		room = func(int64) error { return nil }
	}
	p, err := newPlan(root)
	if err != nil {
		return 0, err
	}
	w := &metaWriter{out: bufio.NewWriterSize(roomyWriter{out, room}, 1<<20)}
	w.super(p, id)
	for _, n := range p.order {
		w.inode(n)
	}
	w.padTo(alignUp(w.at, blockBytes))
	for _, n := range p.order {
		switch n.Type() {
		case TypeDir:
			w.dir(n.dirents(p.parents[n]))
		case TypeSymlink:
			w.bytes([]byte(n.Target))
		}
		w.padTo(alignUp(w.at, blockBytes))
	}
	if err := w.out.Flush(); err != nil {
		return 0, err
	}
	if err := copyData(ctx, room, out, p.files, spools); err != nil {
		return 0, err
	}
	sizeBytes = p.blocks * blockBytes
	return sizeBytes, out.Truncate(sizeBytes)
}

// metaWriter writes front to back; bufio keeps the first error until Flush.
type metaWriter struct {
	out *bufio.Writer
	at  int64
	buf [inodeBytes]byte
}

func (w *metaWriter) bytes(b []byte) {
	n, _ := w.out.Write(b)
	w.at += int64(n)
}

var zeroBlock [blockBytes]byte

func (w *metaWriter) padTo(offset int64) {
	for pad := offset - w.at; pad > 0; pad = offset - w.at {
		before := w.at
		w.bytes(zeroBlock[:min(pad, blockBytes)])
		if w.at == before {
			return
		}
	}
}

// super writes the first 1152 bytes. The checksum covers the rest of block 0, which holds the first inodes; they are
// made ahead for it.
func (w *metaWriter) super(p *plan, id [16]byte) {
	sb := make([]byte, superBytes)
	le := binary.LittleEndian
	le.PutUint32(sb[0:], superMagic)
	le.PutUint32(sb[8:], compatChecksum|compatMtime)
	sb[12] = 12
	le.PutUint16(sb[14:], uint16(p.root.nid))
	le.PutUint64(sb[16:], uint64(len(p.order)))
	le.PutUint32(sb[36:], uint32(p.blocks))
	copy(sb[48:64], id[:])

	rest := &blockPrefix{limit: blockBytes - superOffset - superBytes}
	ahead := &metaWriter{out: bufio.NewWriterSize(rest, 512), at: superOffset + superBytes}
	for _, n := range p.order {
		if ahead.at >= blockBytes {
			break
		}
		ahead.inode(n)
	}
	_ = ahead.out.Flush()
	tail := append(rest.data, zeroBlock[:rest.limit-len(rest.data)]...)
	table := crc32.MakeTable(crc32.Castagnoli)
	le.PutUint32(sb[4:], ^crc32.Update(crc32.Checksum(sb, table), table, tail))

	w.padTo(superOffset)
	w.bytes(sb)
}

// blockPrefix keeps the first limit bytes written to it.
type blockPrefix struct {
	data  []byte
	limit int
}

func (b *blockPrefix) Write(p []byte) (int, error) {
	b.data = append(b.data, p[:min(len(p), b.limit-len(b.data))]...)
	return len(p), nil
}

func (w *metaWriter) inode(n *Inode) {
	w.padTo(int64(n.nid) * inodeSlotBytes)
	b := w.buf[:]
	clear(b)
	le := binary.LittleEndian
	le.PutUint16(b[0:], formatExtendedPlain)
	xattrs := n.xattrBytes()
	if xattrs > 0 {
		le.PutUint16(b[2:], uint16(1+(xattrs-xattrHeaderBytes)/4))
	}
	le.PutUint16(b[4:], n.Mode)
	switch n.Type() {
	case TypeRegular, TypeDir, TypeSymlink:
		le.PutUint64(b[8:], uint64(n.SizeBytes))
		le.PutUint32(b[16:], n.block)
	case TypeChar, TypeBlock:
		le.PutUint32(b[16:], n.Rdev)
	}
	le.PutUint32(b[20:], uint32(n.nid))
	le.PutUint32(b[24:], n.UID)
	le.PutUint32(b[28:], n.GID)
	le.PutUint64(b[32:], uint64(n.MtimeSec))
	le.PutUint32(b[40:], n.MtimeNsec)
	le.PutUint32(b[44:], n.nlink)
	w.bytes(b)
	if xattrs == 0 {
		return
	}
	w.bytes(zeroBlock[:xattrHeaderBytes])
	for _, x := range n.Xattrs {
		index, rest, _ := splitXattr(x.Name)
		w.bytes([]byte{uint8(len(rest)), index, uint8(len(x.Value)), uint8(len(x.Value) >> 8)})
		w.bytes([]byte(rest))
		w.bytes([]byte(x.Value))
		w.padTo(alignUp(w.at, 4))
	}
}

// dir writes a directory's blocks: in each, the fixed parts of its entries and then their names.
func (w *metaWriter) dir(list []dirent) {
	for len(list) > 0 {
		count, _ := fillBlock(list)
		nameOffset := count * direntBytes
		for _, d := range list[:count] {
			b := w.buf[:direntBytes]
			binary.LittleEndian.PutUint64(b[0:], d.inode.nid)
			binary.LittleEndian.PutUint16(b[8:], uint16(nameOffset))
			b[10], b[11] = fileType(d.inode.Mode), 0
			w.bytes(b)
			nameOffset += len(d.name)
		}
		for _, d := range list[:count] {
			w.bytes([]byte(d.name))
		}
		w.padTo(alignUp(w.at, blockBytes))
		list = list[count:]
	}
}

// copyData copies the files, which are in spool order, as long runs.
func copyData(ctx context.Context, room sparse.Room, out *os.File, files []*Inode, spools []*os.File) error {
	for len(files) > 0 {
		first := files[0]
		from, to := first.Offset, int64(first.block)*blockBytes
		length := int64(0)
		count := 0
		for _, n := range files {
			if n.Spool != first.Spool || n.Offset != from+length {
				break
			}
			length += alignUp(n.SizeBytes, blockBytes)
			count++
		}
		// The image is fresh: where a spool has holes, it keeps them.
		if _, err := sparse.CopyData(ctx, room, out, to, spools[first.Spool], from, length); err != nil {
			return err
		}
		files = files[count:]
		if len(files) == 0 || files[0].Spool != first.Spool {
			if err := spools[first.Spool].Truncate(0); err != nil {
				return err
			}
		}
	}
	return nil
}
