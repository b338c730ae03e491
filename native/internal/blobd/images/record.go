package images

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/source"
)

// FormatVersion of image.json and of the EROFS file beside it.
const FormatVersion = 1

const (
	recordFile = "image.json"
	erofsFile  = "image.erofs"
)

// imageMode: an image never changes, and machines read it under users of their own; its folders are for root alone.
const imageMode fs.FileMode = 0o444

// Record describes a stored image; it lies beside the EROFS file as image.json.
type Record struct {
	FormatVersion int           `json:"formatVersion"`
	Digest        string        `json:"digest"`
	SizeBytes     int64         `json:"sizeBytes"`
	Platform      string        `json:"platform"`
	Layers        int           `json:"layers"`
	StoredAtMs    int64         `json:"storedAtUnixMs"`
	Config        source.Config `json:"config"`
}

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// hexOf checks a digest before any path is made of it.
func hexOf(digest string) (string, error) {
	if !digestForm.MatchString(digest) {
		return "", fault.New(fault.Invalid, "digest %.100q is not `sha256:` and 64 hex digits", digest)
	}
	return digest[len("sha256:"):], nil
}

// readRecord reads an image's folder and checks that it is complete.
func readRecord(dir string) (Record, error) {
	var record Record
	text, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return record, err
	}
	if err := json.Unmarshal(text, &record); err != nil {
		return record, fmt.Errorf("%s: %w", filepath.Join(dir, recordFile), err)
	}
	if record.FormatVersion != FormatVersion {
		return record, fmt.Errorf("%s has format %d, this program knows %d", dir, record.FormatVersion, FormatVersion)
	}
	if hex, err := hexOf(record.Digest); err != nil || hex != filepath.Base(dir) {
		return record, fmt.Errorf("%s describes another image, %q", dir, record.Digest)
	}
	info, err := os.Stat(filepath.Join(dir, erofsFile))
	if err != nil {
		return record, err
	}
	if info.Size() != record.SizeBytes {
		return record, fmt.Errorf("%s: %s has %d bytes, should be %d", dir, erofsFile, info.Size(), record.SizeBytes)
	}
	return record, nil
}

// diskBytes is the room that goes with a file, holes not counted: 0 when it has another name, or when it cannot be told.
func diskBytes(path string) uint64 {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil || stat.Nlink > 1 {
		return 0
	}
	return uint64(stat.Blocks) * 512
}
