package guestinit_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// A disk that is copied while it is frozen is consistent and has all that was written until then, though programs never stop
// writing; and a machine boots on it.
func TestSNAP13AFrozenDiskIsWholeAndBootsAnotherMachine(t *testing.T) {
	b := newBench(t)
	if _, err := exec.LookPath("e2fsck"); err != nil {
		t.Skip("e2fsck is not installed")
	}
	b.build("aenv/native/cmd/envd")
	image := b.disk("image", nil, imageFiles("nowhere"))
	tools := b.disk("tools", map[string]string{"envd": "envd"}, nil)
	upper := b.upper()
	m := b.bootOn(upper, fmt.Sprintf(config, ""), image, tools)
	m.initAgent(`{"defaultUser":"root"}`)
	large := make([]byte, 8<<20)
	_, _ = rand.Read(large)
	equal(t, "status of an upload", m.upload("/large", large), http.StatusOK)

	// Written one after another: what has been answered is there.
	var answered atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := int64(1); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if m.upload(fmt.Sprintf("/many/%d/file", n), fmt.Appendf(nil, "file %d", n)) == http.StatusOK {
				answered.Store(n)
			}
		}
	}()
	await(t, "uploads", func() bool { return answered.Load() > 3 })
	written := answered.Load()
	equal(t, "status of freezing the disk", m.post("/fsfreeze", ""), http.StatusNoContent)
	copied := filepath.Join(t.TempDir(), "copy.ext4")
	bytesOf, err := os.ReadFile(upper)
	if err == nil {
		err = os.WriteFile(copied, bytesOf, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	frozen := answered.Load()
	equal(t, "status of thawing the disk", m.post("/fsthaw", ""), http.StatusNoContent)
	await(t, "uploads after the disk was thawed", func() bool { return answered.Load() > frozen+1 })
	close(stop)
	<-stopped
	m.kill()

	if said, err := exec.Command("e2fsck", "-fn", copied).CombinedOutput(); err != nil {
		t.Errorf("the disk is not consistent: %v\n%s", err, said)
	}
	again := b.bootOn(copied, fmt.Sprintf(config, ""), image, tools)
	again.initAgent(`{"defaultUser":"root"}`)
	if !bytes.Equal(again.download("/large"), large) {
		t.Error("/large is not what was written")
	}
	for n := int64(1); n <= written; n++ {
		equal(t, fmt.Sprintf("file %d", n), string(again.download(fmt.Sprintf("/many/%d/file", n))), fmt.Sprintf("file %d", n))
	}
	equal(t, "status of an upload", again.upload("/large", []byte("small")), http.StatusOK)
}

func (m *machine) upload(path string, data []byte) int {
	client := http.Client{Timeout: 60 * time.Second}
	answer, err := client.Post(m.fileURL(path), "application/octet-stream", bytes.NewReader(data))
	if err != nil {
		return 0
	}
	answer.Body.Close()
	return answer.StatusCode
}

func (m *machine) download(path string) []byte {
	m.t.Helper()
	client := http.Client{Timeout: 60 * time.Second}
	answer, err := client.Get(m.fileURL(path))
	if err != nil {
		m.t.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	return data
}

func (m *machine) fileURL(path string) string {
	return "http://" + m.forwarded + "/files?username=root&path=" + url.QueryEscape(path)
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(bootTimeout); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s", what)
		}
	}
}
