package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environment turns a whole environment into the form the kernel takes; PATH is the only thing added when missing.
func Environment(env map[string]string) []string {
	list := make([]string, 0, len(env)+1)
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	if _, has := env["PATH"]; !has {
		list = append(list, "PATH="+keeperPath())
	}
	return list
}

// Find returns the executable a command name means under the command's own PATH.
func Find(name string, env map[string]string) (string, error) {
	if strings.ContainsRune(name, '/') {
		return name, nil
	}
	path, has := env["PATH"]
	if !has {
		path = keeperPath()
	}
	for dir := range strings.SplitSeq(path, ":") {
		if !filepath.IsAbs(dir) {
			continue // what a relative entry finds would depend on the working directory
		}
		candidate := filepath.Join(dir, name)
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("%s: no such program in PATH=%s", name, path)
}

func keeperPath() string {
	if path := os.Getenv("PATH"); path != "" {
		return path
	}
	return defaultPath
}
