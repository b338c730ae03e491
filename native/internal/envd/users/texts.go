package users

import (
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// textMaxBytes bounds what is kept of a file; a longer one is read each time.
	textMaxBytes = 64 << 10
	settledAfter = 2 * time.Second
)

// texts keeps what files said, by path. A nil one keeps nothing.
type texts struct {
	// settledAfter is how long a file must have been as it is to be kept: two changes within one tick of the clock that stamps
	// files look like one.
	settledAfter time.Duration

	mu     sync.Mutex
	byPath map[string]text
}

type text struct {
	of      version
	content string
}

// version tells two states of a path apart.
type version struct {
	device, inode    uint64
	bytes            int64
	modified, change unix.Timespec
}

func versionOf(stat *unix.Stat_t) version {
	return version{uint64(stat.Dev), stat.Ino, stat.Size, stat.Mtim, stat.Ctim}
}

// get returns what the file says, if that is known without reading it.
func (t *texts) get(path string) (string, bool) {
	if t == nil {
		return "", false
	}
	t.mu.Lock()
	kept, ok := t.byPath[path]
	t.mu.Unlock()
	if !ok {
		return "", false
	}
	var now unix.Stat_t
	if unix.Stat(path, &now) != nil || versionOf(&now) != kept.of {
		return "", false
	}
	return kept.content, true
}

// read returns what an opened file says, and keeps it where that can be done.
func (t *texts) read(path string, file *os.File) io.Reader {
	var before, after unix.Stat_t
	if t == nil || unix.Fstat(int(file.Fd()), &before) != nil || before.Mode&unix.S_IFMT != unix.S_IFREG || before.Size > textMaxBytes {
		return file
	}
	content, err := io.ReadAll(io.LimitReader(file, textMaxBytes+1))
	said := strings.NewReader(string(content))
	if err != nil || len(content) > textMaxBytes {
		return io.MultiReader(said, file)
	}
	if unix.Fstat(int(file.Fd()), &after) != nil || versionOf(&before) != versionOf(&after) || !settled(&after, time.Now(), t.settledAfter) {
		return said
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byPath == nil {
		t.byPath = map[string]text{}
	}
	t.byPath[path] = text{versionOf(&after), string(content)}
	return said
}

// settled tells whether the next change cannot have the stamps of the last one. Stamps of the future are of a clock that was
// set back since: what comes next may have any.
func settled(stat *unix.Stat_t, now time.Time, after time.Duration) bool {
	for _, stamp := range []unix.Timespec{stat.Mtim, stat.Ctim} {
		if now.Sub(time.Unix(stamp.Unix())) < after {
			return false
		}
	}
	return true
}
