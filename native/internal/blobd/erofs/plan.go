package erofs

import (
	"errors"
	"fmt"
	"sort"
)

const (
	blockBytes       = 4096
	superOffset      = 1024
	superBytes       = 128
	inodeBytes       = 64
	inodeSlotBytes   = 32
	direntBytes      = 12
	xattrHeaderBytes = 12
	maxBlocks        = 1<<32 - 1
)

// ErrUnfit: the tree has something EROFS has no room for.
var ErrUnfit = errors.New("cannot be stored")

// plan is where everything goes: superblock and inodes first, then the blocks of directories and symbolic links, then
// file data ordered by spool and offset.
type plan struct {
	root *Inode
	// order lists each inode once, parents before children, names in byte order.
	order []*Inode
	// parents of directories; the root is its own.
	parents map[*Inode]*Inode
	// files are the regular files with data, in data order.
	files  []*Inode
	blocks int64
}

// newPlan numbers the tree's inodes and gives every datum its block.
func newPlan(root *Inode) (*plan, error) {
	p := &plan{root: root, parents: map[*Inode]*Inode{root: root}}
	if err := p.collect(root); err != nil {
		return nil, err
	}
	end := p.placeInodes()
	next := alignUp(end, blockBytes) / blockBytes
	for _, n := range p.order {
		switch n.Type() {
		case TypeDir:
			n.SizeBytes = dirBytes(n.dirents(p.parents[n]))
		case TypeSymlink:
			n.SizeBytes = int64(len(n.Target))
		default:
			continue
		}
		n.block = uint32(next)
		next += alignUp(n.SizeBytes, blockBytes) / blockBytes
	}
	next = p.placeData(next)
	if next > maxBlocks {
		return nil, fmt.Errorf("%w: %d blocks of %d bytes, the limit is %d", ErrUnfit, next, blockBytes, int64(maxBlocks))
	}
	p.blocks = next
	return p, nil
}

// collect walks the tree without recursion (depth is the image's choice), counts links and checks names.
func (p *plan) collect(root *Inode) error {
	root.nlink = 2
	seen := map[*Inode]bool{}
	stack := []*Inode{root}
	for len(stack) > 0 {
		dir := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		p.order = append(p.order, dir)
		if !dir.IsDir() {
			continue
		}
		names := make([]string, 0, len(dir.Children))
		for name := range dir.Children {
			if len(name) == 0 || len(name) > MaxNameBytes {
				return fmt.Errorf("%w: name %.40q… of %d bytes, the limit is %d", ErrUnfit, name, len(name), MaxNameBytes)
			}
			names = append(names, name)
		}
		sort.Sort(sort.Reverse(sort.StringSlice(names)))
		for _, name := range names {
			child := dir.Children[name]
			if child.IsDir() {
				child.nlink = 2
				dir.nlink++
				p.parents[child] = dir
			} else if seen[child] {
				child.nlink++
				continue
			} else {
				child.nlink = 1
				seen[child] = true
			}
			stack = append(stack, child)
		}
	}
	return nil
}

// placeInodes gives inode numbers and returns the end of the inode area. The metadata area begins at block 0, so the
// root, right behind the superblock, gets number 36.
func (p *plan) placeInodes() int64 {
	at := int64(superOffset + superBytes)
	for _, n := range p.order {
		if at%blockBytes+inodeBytes > blockBytes {
			at = alignUp(at, blockBytes)
		}
		n.nid = uint64(at / inodeSlotBytes)
		at = alignUp(at+inodeBytes+n.xattrBytes(), inodeSlotBytes)
	}
	return at
}

// placeData gives file data its blocks, in the order in which it lies in the spools. Inodes that share a datum (a layer
// applied twice) share its blocks.
func (p *plan) placeData(next int64) int64 {
	for _, n := range p.order {
		if n.Type() == TypeRegular && n.SizeBytes > 0 {
			p.files = append(p.files, n)
		}
	}
	sort.SliceStable(p.files, func(i, j int) bool {
		a, b := p.files[i], p.files[j]
		if a.Spool != b.Spool {
			return a.Spool < b.Spool
		}
		return a.Offset < b.Offset
	})
	distinct := p.files[:0]
	for _, n := range p.files {
		if len(distinct) > 0 {
			last := distinct[len(distinct)-1]
			if last.Spool == n.Spool && last.Offset == n.Offset {
				n.block = last.block
				continue
			}
		}
		n.block = uint32(next)
		next += alignUp(n.SizeBytes, blockBytes) / blockBytes
		distinct = append(distinct, n)
	}
	p.files = distinct
	return next
}

// dirBytes is the size of a directory's data: full blocks, except the last.
func dirBytes(list []dirent) int64 {
	total := int64(0)
	for len(list) > 0 {
		count, used := fillBlock(list)
		list = list[count:]
		if len(list) > 0 {
			used = blockBytes
		}
		total += int64(used)
	}
	return total
}

// fillBlock tells how many of the entries fit in one block, and the bytes they take.
func fillBlock(list []dirent) (count, used int) {
	for _, d := range list {
		need := direntBytes + len(d.name)
		if used+need > blockBytes {
			break
		}
		used += need
		count++
	}
	return count, used
}
