package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/rootfs"
)

// expectation is what a layer's bytes must hash to; a nil part is checked elsewhere or unknown.
type expectation struct {
	// stored is of the bytes as they arrive, plain of the tar inside.
	stored, plain *v1.Hash
}

// transferError: the bytes did not arrive whole. Another attempt may help.
type transferError struct{ cause error }

func (e *transferError) Error() string { return "the data did not arrive whole: " + e.cause.Error() }
func (e *transferError) Unwrap() error { return e.cause }

// arrival watches the stored bytes: counts and hashes them, and remembers how the stream ended.
type arrival struct {
	in    io.Reader
	sum   hash.Hash
	count func(int64)
	total int64
	err   error
}

func (a *arrival) Read(p []byte) (int, error) {
	n, err := a.in.Read(p)
	if n > 0 {
		a.sum.Write(p[:n])
		a.total += int64(n)
		a.count(int64(n))
	}
	if err != nil && a.err == nil {
		a.err = err
	}
	return n, err
}

// finish reads what the tar reader left and tells whether everything arrived as promised.
func (a *arrival) finish(want *v1.Hash) error {
	_, _ = io.Copy(io.Discard, a)
	if a.err != nil && !errors.Is(a.err, io.EOF) {
		return &transferError{a.err}
	}
	return checkSum(a.sum, want)
}

func checkSum(sum hash.Hash, want *v1.Hash) error {
	if want == nil {
		return nil
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want.Hex || want.Algorithm != "sha256" {
		return &transferError{fmt.Errorf("content is sha256:%s, should be %s", got, want)}
	}
	return nil
}

type noHash struct{ hash.Hash }

func (noHash) Write(p []byte) (int, error) { return len(p), nil }

// hasherFor spares the work where nothing is checked.
func hasherFor(want *v1.Hash) hash.Hash {
	if want == nil {
		return noHash{}
	}
	return sha256.New()
}

// readTarLayer reads one stored layer. When the tar is bad it still reads to the end, to tell damage on the way
// (transferError) from a bad image (fault.Invalid).
func readTarLayer(ctx context.Context, stored io.Reader, want expectation, spool *rootfs.Spool, budget *rootfs.Budget,
	options rootfs.TarOptions, count func(int64)) (*rootfs.Layer, error) {
	in := &arrival{in: stored, sum: hasherFor(want.stored), count: count}
	layer, err := readPlainTar(ctx, in, want, spool, budget, options)
	if rootfs.IsLocal(err) || ctx.Err() != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	if transfer := in.finish(want.stored); transfer != nil {
		count(-in.total)
		return nil, transfer
	}
	return layer, asInvalid(err)
}

func readPlainTar(ctx context.Context, in *arrival, want expectation, spool *rootfs.Spool, budget *rootfs.Budget,
	options rootfs.TarOptions) (*rootfs.Layer, error) {
	plain, err := rootfs.Decompress(in)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	sum := hasherFor(want.plain)
	tee := io.TeeReader(plain, sum)
	layer, err := rootfs.ReadTar(ctx, tee, spool, budget, options)
	if err != nil {
		return nil, err
	}
	// The end of the stream holds the compression's own checksum. Some tools leave rubbish behind it: that matters only
	// where no digest vouches for the bytes.
	if _, err := io.Copy(io.Discard, tee); err != nil && want.stored == nil {
		return nil, err
	}
	return layer, checkSum(sum, want.plain)
}

// asInvalid: bytes that arrived whole and make no sense are the image's fault.
func asInvalid(err error) error {
	var named *fault.Error
	var transfer *transferError
	if err == nil || errors.As(err, &named) {
		return err
	}
	if errors.As(err, &transfer) {
		return fault.Wrap(fault.Invalid, transfer.cause, "the layer is not what the image says")
	}
	return fault.Wrap(fault.Invalid, err, "the layer cannot be read")
}
