package filesystem

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	metadataPrefix = "user.e2b."
	// Limits of one file's metadata; the kernel's own are of the same order.
	metadataMaxKeys       = 64
	metadataMaxKeyBytes   = 200
	metadataMaxValueBytes = 4096
)

// CheckMetadata tells what is wrong with a file's metadata, or nil.
func CheckMetadata(metadata map[string]string) error {
	if len(metadata) > metadataMaxKeys {
		return fmt.Errorf("%d metadata keys are too many: at most %d", len(metadata), metadataMaxKeys)
	}
	for key, value := range metadata {
		if key == "" || len(key) > metadataMaxKeyBytes {
			return fmt.Errorf("metadata key '%s' must have 1 to %d characters", key, metadataMaxKeyBytes)
		}
		if len(value) > metadataMaxValueBytes {
			return fmt.Errorf("metadata value of '%s' is longer than %d characters", key, metadataMaxValueBytes)
		}
		if strings.ContainsFunc(key+value, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
			return fmt.Errorf("metadata '%s' must be printable ASCII", key)
		}
	}
	return nil
}

// ReplaceMetadata makes a file's metadata exactly this. A file system without extended attributes has none, silently.
func ReplaceMetadata(file *os.File, metadata map[string]string) error {
	fd := int(file.Fd())
	for key := range metadataOfFile(file) {
		if _, kept := metadata[key]; !kept {
			_ = unix.Fremovexattr(fd, metadataPrefix+key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		err := unix.Fsetxattr(fd, metadataPrefix+key, []byte(metadata[key]), 0)
		if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("metadata '%s': %w", key, err)
		}
	}
	return nil
}

// KeepForeignAttributes gives a file that is going to replace that at path the extended attributes that others have set there,
// access lists among them, as far as it takes them. A program's capabilities are not kept: they were for the old content, and the
// kernel drops them at any write.
func KeepForeignAttributes(file *os.File, path string) {
	for name := range strings.SplitSeq(string(grow(func(b []byte) (int, error) { return unix.Listxattr(path, b) })), "\x00") {
		if name == "" || name == "security.capability" || strings.HasPrefix(name, metadataPrefix) {
			continue
		}
		if value := grow(func(b []byte) (int, error) { return unix.Getxattr(path, name, b) }); value != nil {
			_ = unix.Fsetxattr(int(file.Fd()), name, value, 0)
		}
	}
}

// metadataOf reads the metadata of what path leads to.
func metadataOf(path string) map[string]string {
	return readMetadata(func(b []byte) (int, error) { return unix.Listxattr(path, b) },
		func(name string, b []byte) (int, error) { return unix.Getxattr(path, name, b) })
}

func metadataOfFile(file *os.File) map[string]string {
	fd := int(file.Fd())
	return readMetadata(func(b []byte) (int, error) { return unix.Flistxattr(fd, b) },
		func(name string, b []byte) (int, error) { return unix.Fgetxattr(fd, name, b) })
}

func readMetadata(list func([]byte) (int, error), get func(string, []byte) (int, error)) map[string]string {
	var metadata map[string]string
	for name := range strings.SplitSeq(string(grow(list)), "\x00") {
		key, ours := strings.CutPrefix(name, metadataPrefix)
		if !ours {
			continue
		}
		value := grow(func(b []byte) (int, error) { return get(name, b) })
		if metadata == nil {
			metadata = map[string]string{}
		}
		metadata[text(key)] = text(string(value))
	}
	return metadata
}

// grow calls read with a buffer that is large enough; an error gives nothing.
func grow(read func([]byte) (int, error)) []byte {
	buffer := make([]byte, 256)
	for {
		n, err := read(buffer)
		if err == nil {
			return buffer[:n]
		}
		if !errors.Is(err, unix.ERANGE) || len(buffer) >= 64<<10 {
			return nil
		}
		buffer = make([]byte, 4*len(buffer))
	}
}
