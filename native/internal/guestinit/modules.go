package guestinit

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// modulesDir holds what the kernel does not have built in, named so that each comes after those it needs. A kernel that
// has everything built in comes without.
const modulesDir = "/modules"

func loadModules() error {
	entries, err := os.ReadDir(modulesDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return problem("list the kernel modules", err)
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".ko") {
			continue
		}
		if err := loadModule(modulesDir + "/" + entry.Name()); err != nil && !errors.Is(err, unix.EEXIST) {
			return problem("load kernel module "+entry.Name(), err)
		}
	}
	return nil
}

func loadModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return unix.FinitModule(int(file.Fd()), "", 0)
}
