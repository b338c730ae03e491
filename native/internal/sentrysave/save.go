// Package sentrysave has a running gVisor sandbox write its state to files, over the control socket of its kernel (the sentry): what
// runsc's checkpoint and fscheckpoint do, of which starting runsc is a fifth.
package sentrysave

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"aenv/native/internal/writeback"
)

const (
	// answerBytes is more than any answer has.
	answerBytes = 1 << 20
	// reasonChars is as much of what a sandbox says as a person reads, who need not believe it.
	reasonChars = 500
	// deadline is for a sandbox that does not answer at all: 64 GiB are written in that time by a slow disk.
	deadline = 9 * time.Minute
)

// A State is what of a sandbox is written, by the names of its files in the order in which the sentry takes them. The last, with the
// pages, is nearly all of it.
type State struct {
	method string
	arg    any
	files  []string
}

// Memory is all of a sandbox, which runs on. Pages that hold nothing but zeros are left out. Names and fields are gVisor's
// (control.SaveOpts; checkpointfiles).
var Memory = State{
	method: "containerManager.Checkpoint",
	arg: map[string]any{
		"metadata":                            map[string]string{"compression": "none"},
		"app_mf_exclude_committed_zero_pages": true,
		"have_pages_file":                     true,
		"Resume":                              true,
	},
	files: []string{"checkpoint.img", "pages_meta.img", "pages.img"},
}

// Disk is the root file system of a sandbox, which runs on (boot.FSSaveArgs).
var Disk = State{
	method: "containerManager.FSSave",
	arg:    map[string]any{"paths": []map[string]string{{"path": "/"}}},
	files:  []string{"fscheckpoint.pb", "multitar.img", "pages_meta.img", "pages.img"},
}

// Save has the sandbox that listens on socket write the state into files of dir, which must not be there yet, and returns when it has.
// With writeOut the pages are on their way to the disk meanwhile; nothing is on stable storage yet. Errors: the sentry's own, which
// leaves the sandbox running; files that were made stay.
func Save(socket, dir string, state State, writeOut bool) error {
	files := make([]*os.File, 0, len(state.files))
	defer func() {
		for _, file := range files {
			file.Close()
		}
	}()
	for _, name := range state.files {
		file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	if writeOut {
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			writeback.Follow(files[len(files)-1], stop)
		}()
		defer func() {
			close(stop)
			<-stopped
		}()
	}
	return call(socket, state, files)
}

// call asks and waits for the answer: one JSON object each, the files beside the first.
func call(socket string, state State, files []*os.File) error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(deadline)); err != nil {
		return err
	}
	asked, err := json.Marshal(map[string]any{"method": state.method, "arg": state.arg})
	if err != nil {
		return err
	}
	fds := make([]int, len(files))
	for at, file := range files {
		fds[at] = int(file.Fd())
	}
	if _, _, err := conn.WriteMsgUnix(asked, unix.UnixRights(fds...), nil); err != nil {
		return err
	}
	var answer struct {
		Success bool   `json:"success"`
		Err     string `json:"err"`
	}
	if err := json.NewDecoder(io.LimitReader(conn, answerBytes)).Decode(&answer); err != nil {
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("the sandbox at %s ended before it had answered %s", socket, state.method)
		}
		return fmt.Errorf("the answer to %s at %s: %w", state.method, socket, err)
	}
	if !answer.Success {
		return fmt.Errorf("the sandbox refused %s: %.*q", state.method, reasonChars, answer.Err)
	}
	return nil
}
