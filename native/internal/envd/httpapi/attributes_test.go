package httpapi

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A file that an upload replaces keeps what others have attached to it, and not what was said of its old content.
func TestAReplacedFileKeepsForeignAttributes(t *testing.T) {
	b := newBench(t)
	path := b.path("f")
	if err := os.WriteFile(path, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	// Its owner may write, the user 1234 and the group may read.
	access := binary.LittleEndian.AppendUint32(nil, 2)
	for _, entry := range []struct {
		tag, permissions uint16
		id               uint32
	}{{0x01, 6, ^uint32(0)}, {0x02, 4, 1234}, {0x04, 4, ^uint32(0)}, {0x10, 4, ^uint32(0)}, {0x20, 0, ^uint32(0)}} {
		access = binary.LittleEndian.AppendUint16(access, entry.tag)
		access = binary.LittleEndian.AppendUint16(access, entry.permissions)
		access = binary.LittleEndian.AppendUint32(access, entry.id)
	}
	capability := binary.LittleEndian.AppendUint32(nil, 0x02000001)
	capability = append(capability, make([]byte, 16)...)
	capability[5] = 0x04
	attributes := map[string][]byte{
		"user.other":              bytes.Repeat([]byte("x"), 600),
		"user.empty":              {},
		"user.e2b.kind":           []byte("old"),
		"system.posix_acl_access": access,
		"security.capability":     capability,
	}
	for name, value := range attributes {
		if err := unix.Setxattr(path, name, value, 0); err != nil {
			t.Logf("%s cannot be set here: %v", name, err)
			delete(attributes, name)
		}
	}
	if len(attributes) == 0 {
		t.Skip("the temporary directory has no extended attributes")
	}
	if got := b.put(path, []byte("new")); got.status != 200 {
		t.Fatalf("%+v", got)
	}
	for name, value := range attributes {
		kept := name != "user.e2b.kind" && name != "security.capability"
		got := make([]byte, 1024)
		n, err := unix.Getxattr(path, name, got)
		if kept && (err != nil || !bytes.Equal(got[:n], value)) || !kept && err == nil {
			t.Errorf("%s: %v %q", name, err, got[:max(n, 0)])
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}
