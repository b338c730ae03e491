package rootfs

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"aenv/native/internal/blobd/fault"
)

// maxZstdWindowBytes is what `zstd --long=27` asks of a decoder; larger windows are refused.
const maxZstdWindowBytes = 128 << 20

// Decompress looks at the bytes, not at what they are said to be, and gives the plain stream. Close frees the decoder,
// not r. An empty stream stays empty.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(r, 128<<10)
	head, err := buffered.Peek(512)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case looksLikeTar(head):
		return io.NopCloser(buffered), nil
	case isGzip(head):
		return gzip.NewReader(buffered)
	case isZstd(head):
		decoder, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxZstdWindowBytes))
		if err != nil {
			return nil, err
		}
		return decoder.IOReadCloser(), nil
	case bytes.HasPrefix(head, []byte("BZh")), bytes.HasPrefix(head, []byte("\xfd7zXZ")):
		return nil, fault.New(fault.Invalid, "compressed with bzip2 or xz; gzip, zstd and plain tar are supported")
	default:
		return io.NopCloser(buffered), nil
	}
}

// IsCompressed tells from a stream's first 512 bytes whether Decompress would have to work.
func IsCompressed(head []byte) bool {
	return !looksLikeTar(head) && (isGzip(head) || isZstd(head))
}

func isGzip(head []byte) bool { return bytes.HasPrefix(head, []byte{0x1f, 0x8b}) }

// isZstd knows data frames and the skippable ones that may come first.
func isZstd(head []byte) bool {
	if len(head) < 4 {
		return false
	}
	data := bytes.Equal(head[:4], []byte{0x28, 0xb5, 0x2f, 0xfd})
	skippable := head[0]&0xf0 == 0x50 && bytes.Equal(head[1:4], []byte{0x2a, 0x4d, 0x18})
	return data || skippable
}
