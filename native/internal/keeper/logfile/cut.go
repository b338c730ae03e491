package logfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// cut leaves the newest half of the limit in a file that has grown past it, from the start of a line on. It works while
// others append: they opened the file O_APPEND and go on at its new end. What they write in the instant between the last
// read and the truncation is lost, and a crash of the keeper right there loses the half that was to stay.
func cut(path string, limitBytes int64) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() <= limitBytes {
		return nil
	}
	newest := make([]byte, limitBytes/2)
	n, err := file.ReadAt(newest, info.Size()-int64(len(newest)))
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the newest half of %s: %w", path, err)
	}
	newest = newest[:n]
	if line := bytes.IndexByte(newest, '\n'); line >= 0 {
		newest = newest[line+1:]
	}
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err = file.Write(newest)
	return err
}
