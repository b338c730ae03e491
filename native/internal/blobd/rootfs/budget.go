package rootfs

import (
	"strings"
	"sync/atomic"

	"aenv/native/internal/blobd/erofs"
	"aenv/native/internal/blobd/fault"
)

// What things take in memory while an image is converted, beside their text. Rather too much than too little: slices
// and maps have room to grow.
const (
	// entryCost is an Entry in its layer's list.
	entryCost = 352
	// nodeCost is an inode in the tree, its line in its directory, and its place in the plan of the EROFS file.
	nodeCost = 304
	// directoryCost is what a directory takes on top: its map, with its first lines.
	directoryCost = 320
	markerCost    = 64
	xattrCost     = 64
)

const (
	maxPathBytes  = 4095
	maxDepth      = 1024
	maxNameBytes  = erofs.MaxNameBytes
	maxShownBytes = 60
)

// Limits say what one image may hold, over all its layers.
type Limits struct {
	// MetadataBytes is the memory that names, inodes, link targets, attributes and removals take during the conversion.
	MetadataBytes int64
	// DataBytes is the content of regular files.
	DataBytes int64
}

// DefaultLimits hold for every image: 512 MiB of metadata (around 700,000 files) and 64 GiB of file data.
var DefaultLimits = Limits{MetadataBytes: 512 << 20, DataBytes: 64 << 30}

// Budget counts what an image takes against its limits. It is safe for concurrent use.
type Budget struct {
	limits Limits
	// whole is the budget this one is a part of.
	whole    *Budget
	metadata atomic.Int64
	data     atomic.Int64
}

// NewBudget begins one for a conversion.
func NewBudget(limits Limits) *Budget { return &Budget{limits: limits} }

// Part is a budget without limits of its own: what it takes is taken of b, too, until GiveBack.
func (b *Budget) Part() *Budget { return &Budget{whole: b} }

// GiveBack returns to the whole all that this part has taken, because nothing of it is kept.
func (b *Budget) GiveBack() {
	b.whole.metadata.Add(-b.metadata.Swap(0))
	b.whole.data.Add(-b.data.Swap(0))
}

// takeMetadata fails with fault.Invalid when the image needs more than is allowed; reading on does not help (IsLocal).
func (b *Budget) takeMetadata(bytes int64) error {
	if b.whole != nil {
		b.metadata.Add(bytes)
		return b.whole.takeMetadata(bytes)
	}
	if b.metadata.Add(bytes) > b.limits.MetadataBytes {
		return &localError{fault.New(fault.Invalid,
			"the image has too many files, removals, long paths or attributes: their descriptions, all layers together, need more than %d MiB of memory, which is the limit; build the image with fewer files",
			b.limits.MetadataBytes>>20)}
	}
	return nil
}

// takeData is as takeMetadata for the content of files.
func (b *Budget) takeData(bytes int64) error {
	if b.whole != nil {
		b.data.Add(bytes)
		return b.whole.takeData(bytes)
	}
	if bytes > b.limits.DataBytes || b.data.Add(bytes) > b.limits.DataBytes {
		return &localError{fault.New(fault.Invalid,
			"the image's files hold, all layers together, more than %d GiB, which is the limit; build a smaller image and bring large data in by other means",
			b.limits.DataBytes>>30)}
	}
	return nil
}

// takeEntry counts an entry of a layer, without its content.
func (b *Budget) takeEntry(entry *Entry) error {
	cost := int64(entryCost + len(entry.Path) + len(entry.LinkTo) + len(entry.Inode.Target))
	for _, x := range entry.Inode.Xattrs {
		cost += int64(xattrCost + len(x.Name) + len(x.Value))
	}
	return b.takeMetadata(cost)
}

// takeNode counts an inode that goes into the tree.
func (b *Budget) takeNode(n *erofs.Inode) error {
	if n.IsDir() {
		return b.takeMetadata(nodeCost + directoryCost)
	}
	return b.takeMetadata(nodeCost)
}

// checkNames refuses a path of which the kernel could not open some component.
func checkNames(name string) error {
	for part := range strings.SplitSeq(name, "/") {
		if err := checkName(part); err != nil {
			return err
		}
	}
	return nil
}

func checkName(part string) error {
	if len(part) > maxNameBytes {
		return fault.New(fault.Invalid, "name %.*q… has %d bytes, at most %d are possible; rename it in the image", maxShownBytes, part, len(part), maxNameBytes)
	}
	return nil
}
