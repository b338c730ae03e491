package flatten

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"aenv/native/internal/blobd/erofs"
	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/rootfs"
	"aenv/native/internal/blobd/space"
	"aenv/native/internal/durable"
)

// layerWorkers bounds the layers read at once: enough to keep two cores and a registry connection busy.
const layerWorkers = 4

// Input is one layer and how to read it.
type Input struct {
	// ID is the same for layers of the same content, which are then read once.
	ID string
	// SizeBytes as stored, for progress; 0 when unknown.
	SizeBytes uint64
	// Read brings the whole layer, calling count with bytes as they arrive. It may be called once only.
	Read func(ctx context.Context, spool *rootfs.Spool, budget *rootfs.Budget, count func(int64)) (*rootfs.Layer, error)
}

// Merged is a read and merged image, its file data still in spools. Close it.
type Merged struct {
	tree   *rootfs.Tree
	budget *rootfs.Budget
	spools []*rootfs.Spool
	disk   *space.Guard
}

// Close closes the spools.
func (m *Merged) Close() error {
	var err error
	for _, spool := range m.spools {
		err = errors.Join(err, spool.Close())
	}
	return err
}

// Read reads all layers, lowest first, with spools in dir (the caller removes it), and merges them. It fails with
// fault.Invalid when the image is beyond rootfs.DefaultLimits, and with fault.Exhausted when the disk's reserve is reached.
func Read(ctx context.Context, dir string, disk *space.Guard, inputs []Input, progress *Progress) (merged *Merged, err error) {
	budget := rootfs.NewBudget(rootfs.DefaultLimits)
	merged = &Merged{tree: rootfs.NewTree(budget), budget: budget, disk: disk}
	defer func() {
		if err != nil {
			err = errors.Join(err, merged.Close())
			merged = nil
		}
	}()
	unique, order := distinct(inputs)
	progress.update(func(s *Snapshot) {
		*s = Snapshot{Phase: Downloading, LayersTotal: uint32(len(unique))}
		for _, input := range unique {
			s.TotalBytes += input.SizeBytes
		}
	})
	for i := range unique {
		spool, err := rootfs.NewSpool(filepath.Join(dir, "layer-"+strconv.Itoa(i)), disk.Room)
		if err != nil {
			return merged, err
		}
		merged.spools = append(merged.spools, spool)
	}
	return merged, merged.readAll(ctx, unique, order, progress)
}

// distinct lists the inputs without repetition, and for each layer the place of its input in that list.
func distinct(inputs []Input) (unique []Input, order []int) {
	places := map[string]int{}
	for _, input := range inputs {
		place, known := places[input.ID]
		if !known {
			place = len(unique)
			places[input.ID] = place
			unique = append(unique, input)
		}
		order = append(order, place)
	}
	return unique, order
}

// readAll reads in parallel and applies in order, each layer as soon as those below it are in.
func (m *Merged) readAll(ctx context.Context, unique []Input, order []int, progress *Progress) error {
	layers := make([]*rootfs.Layer, len(unique))
	ready := make([]chan struct{}, len(unique))
	for i := range ready {
		ready[i] = make(chan struct{})
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.applyAll(ctx, layers, ready, order) })
	group.Go(func() error {
		readers, ctx := errgroup.WithContext(ctx)
		readers.SetLimit(layerWorkers)
		for i, input := range unique {
			if ctx.Err() != nil {
				break
			}
			readers.Go(func() error {
				layer, err := input.Read(ctx, m.spools[i], m.budget, progress.addBytes)
				if err != nil {
					return fmt.Errorf("layer %d of %d (%s): %w", i+1, len(unique), input.ID, err)
				}
				layers[i] = layer
				progress.update(func(s *Snapshot) { s.LayersDone++ })
				close(ready[i])
				return nil
			})
		}
		return readers.Wait()
	})
	return group.Wait()
}

func (m *Merged) applyAll(ctx context.Context, layers []*rootfs.Layer, ready []chan struct{}, order []int) error {
	uses := make([]int, len(layers))
	for _, place := range order {
		uses[place]++
	}
	for _, place := range order {
		select {
		case <-ready[place]:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := m.tree.Apply(layers[place], place); err != nil {
			return fmt.Errorf("layer %d: %w", place+1, err)
		}
		if uses[place]--; uses[place] == 0 {
			layers[place] = nil
		}
	}
	m.tree.EnsureMountPoints()
	return nil
}

// Write lays the image out as one durable EROFS file at path. digest (`sha256:…`) names the image and gives the volume its id.
func (m *Merged) Write(ctx context.Context, path, digest string, progress *Progress) (sizeBytes int64, err error) {
	progress.update(func(s *Snapshot) { s.Phase = Converting })
	var id [16]byte
	raw, err := hex.DecodeString(strings.TrimPrefix(digest, "sha256:"))
	if err != nil || len(raw) != 32 {
		return 0, fmt.Errorf("image digest %q is not a SHA-256", digest)
	}
	copy(id[:], raw)
	out, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	spools := make([]*os.File, len(m.spools))
	for i, spool := range m.spools {
		spools[i] = spool.File()
	}
	sizeBytes, err = erofs.Write(ctx, out, m.tree.Root, spools, id, m.disk.Room)
	if errors.Is(err, erofs.ErrUnfit) {
		return 0, fault.Wrap(fault.Invalid, err, "the image does not fit into EROFS")
	}
	if err != nil {
		return 0, err
	}
	// Never to be written again, and for everybody who is shown it.
	if err := out.Chmod(0o444); err != nil {
		return 0, err
	}
	if err := out.Sync(); err != nil {
		return 0, err
	}
	return sizeBytes, durable.SyncPath(filepath.Dir(path))
}
