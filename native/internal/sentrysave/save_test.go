package sentrysave

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What a sandbox that works does is tested with real ones (test/host/gvisor-driver.test.ts).

func TestTheSentryIsAskedAsItIsByRunsc(t *testing.T) {
	for _, of := range []struct {
		state State
		asked string
		files []string
	}{
		{
			Memory,
			`{"arg":{"Resume":true,"app_mf_exclude_committed_zero_pages":true,"have_pages_file":true,"metadata":{"compression":"none"}},"method":"containerManager.Checkpoint"}`,
			[]string{"checkpoint.img", "pages_meta.img", "pages.img"},
		},
		{
			Disk,
			`{"arg":{"paths":[{"path":"/"}]},"method":"containerManager.FSSave"}`,
			[]string{"fscheckpoint.pb", "multitar.img", "pages_meta.img", "pages.img"},
		},
	} {
		dir := t.TempDir()
		socket := listen(t, func(conn *net.UnixConn) {
			asked, files := receive(t, conn)
			if asked != of.asked {
				t.Errorf("asked for %s", asked)
			}
			for at, file := range files {
				io.WriteString(file, of.files[at])
			}
			io.WriteString(conn, `{"success":true,"err":"","result":null}`)
		})
		if err := Save(socket, dir, of.state, true); err != nil {
			t.Fatal(err)
		}
		for _, name := range of.files {
			if held, err := os.ReadFile(filepath.Join(dir, name)); string(held) != name {
				t.Errorf("%s holds %q, %v", name, held, err)
			}
		}
	}
}

func TestWhatTheSandboxSaysOfAFailureIsTheError(t *testing.T) {
	for answer, want := range map[string]string{
		`{"success":false,"err":"no space\nleft on device","result":null}`: `: "no space\nleft on device"`,
		``:               "ended before it had answered",
		`{"success":tru`: "the answer to containerManager.Checkpoint",
	} {
		socket := listen(t, func(conn *net.UnixConn) {
			receive(t, conn)
			io.WriteString(conn, answer)
		})
		if err := Save(socket, t.TempDir(), Memory, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q became %v", answer, err)
		}
	}
}

func TestFilesThatAreThereAreNotWrittenOver(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pages.img"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Save(filepath.Join(dir, "no-socket"), dir, Memory, false); !os.IsExist(err) {
		t.Errorf("said %v", err)
	}
}

// listen answers one call.
func listen(t *testing.T, answer func(conn *net.UnixConn)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		conn, err := listener.AcceptUnix()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		answer(conn)
	}()
	t.Cleanup(func() {
		listener.Close()
		<-answered
	})
	return path
}

// receive reads a call as the sentry does: the files come with its first byte.
func receive(t *testing.T, conn *net.UnixConn) (call string, files []*os.File) {
	asked, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(8*4))
	n, oobn, _, _, err := conn.ReadMsgUnix(asked, rights)
	if err != nil {
		t.Error(err)
		return
	}
	messages, err := unix.ParseSocketControlMessage(rights[:oobn])
	if err != nil || len(messages) != 1 {
		t.Errorf("%d messages, %v", len(messages), err)
		return
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Error(err)
	}
	for _, fd := range fds {
		file := os.NewFile(uintptr(fd), "handed over")
		t.Cleanup(func() { file.Close() })
		files = append(files, file)
	}
	return string(asked[:n]), files
}
