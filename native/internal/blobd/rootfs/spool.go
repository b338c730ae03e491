// Package rootfs turns layers into one tree: it reads tar streams and directories into a list of entries, their data
// spooled to disk, and applies layers over each other with whiteouts, hard links and links in parent paths.
package rootfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

const (
	blockBytes     = 4096
	spoolStepBytes = 256 << 10
)

// Spool is the data of one layer's files on disk, each at a multiple of 4096. Blocks of zeros become holes.
type Spool struct {
	file *os.File
	room func(bytes int64) error
	end  int64
	buf  []byte
}

// NewSpool makes an empty spool at path. The caller closes it, and owns the file's removal. room, unless nil, is asked
// before data is written whether the disk may take it.
func NewSpool(path string, room func(bytes int64) error) (*Spool, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &Spool{file: file, room: room}, nil
}

// File is what the spool's data lies in.
func (s *Spool) File() *os.File { return s.file }

// Close closes the file. The spool must not be used afterwards.
func (s *Spool) Close() error { return s.file.Close() }

// Reset forgets everything, for another attempt at the layer.
func (s *Spool) Reset() error {
	s.end = 0
	return s.file.Truncate(0)
}

// localError is what this machine says, its disk or its limits, as opposed to a failure of the stream that is read.
type localError struct{ cause error }

func (e *localError) Error() string { return e.cause.Error() }
func (e *localError) Unwrap() error { return e.cause }

// IsLocal tells a full or failed disk of this machine, or a reached limit, from a failure of the source: neither another
// try of the source nor the rest of it will help.
func IsLocal(err error) bool {
	var local *localError
	return errors.As(err, &local)
}

// append stores exactly size bytes of r and returns where.
func (s *Spool) append(ctx context.Context, r io.Reader, size int64) (offset int64, err error) {
	offset = s.end
	at := offset
	if s.buf == nil {
		s.buf = make([]byte, spoolStepBytes)
	}
	for left := size; left > 0; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		step := s.buf[:min(left, spoolStepBytes)]
		if _, err := io.ReadFull(r, step); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		if err := s.writeSparse(step, at); err != nil {
			return 0, &localError{fmt.Errorf("store layer data: %w", err)}
		}
		at += int64(len(step))
		left -= int64(len(step))
	}
	s.end = (at + blockBytes - 1) / blockBytes * blockBytes
	return offset, nil
}

var zeroBlock [blockBytes]byte

// writeSparse writes data at a block-aligned offset, whole zero blocks left out.
func (s *Spool) writeSparse(data []byte, at int64) error {
	for start := 0; start < len(data); {
		end, zero := sameKind(data, start)
		if !zero {
			if s.room != nil {
				if err := s.room(int64(end - start)); err != nil {
					return err
				}
			}
			if _, err := s.file.WriteAt(data[start:end], at+int64(start)); err != nil {
				return err
			}
		}
		start = end
	}
	return nil
}

// sameKind finds the end of the run of zero, or non-zero, blocks that begins at start.
func sameKind(data []byte, start int) (end int, zero bool) {
	for end = start; end < len(data); {
		next := min(end+blockBytes, len(data))
		isZero := bytes.Equal(data[end:next], zeroBlock[:next-end])
		if end == start {
			zero = isZero
		} else if isZero != zero {
			break
		}
		end = next
	}
	return end, zero
}
