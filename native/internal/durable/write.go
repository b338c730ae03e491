// Package durable puts bytes on stable storage: single files under their final name at once, and whole trees.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// TempPrefix begins the name of every file that is not finished; whoever owns a folder removes those at its start.
const TempPrefix = ".tmp-"

// WriteFile replaces a file at once: after a crash it holds the old content or the new. At no moment can anybody read it whom
// mode does not let.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	temp, err := os.CreateTemp(filepath.Dir(path), TempPrefix)
	if err != nil {
		return err
	}
	_, err = temp.Write(data)
	if err == nil {
		err = errors.Join(temp.Chmod(mode), temp.Sync())
	}
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(temp.Name()))
	}
	return SyncPath(filepath.Dir(path))
}

// SyncPath makes a file's data, or a folder's entries, durable.
func SyncPath(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// RemoveTemps deletes unfinished files of an earlier process in a folder.
func RemoveTemps(dir string) error {
	leftovers, err := filepath.Glob(filepath.Join(dir, TempPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range leftovers {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}
