package netslot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	namespaceDir = "/run/netns"
	ownNamespace = "/proc/thread-self/ns/net"
)

// spaces are the network namespaces of a plan, by name. Every method is called on one and the same locked thread.
type spaces struct {
	opened  map[string]*space
	current *space
}

type space struct {
	file *os.File
	// route speaks about links, addresses, neighbours and routes; nil before it is used.
	route *socket
}

func openSpaces() (*spaces, error) {
	file, err := os.Open(ownNamespace)
	if err != nil {
		return nil, err
	}
	home := &space{file: file}
	return &spaces{opened: map[string]*space{"": home}, current: home}, nil
}

func (s *spaces) close() error {
	var errs []error
	for _, space := range s.opened {
		if space.route != nil {
			errs = append(errs, space.route.close())
		}
		errs = append(errs, space.file.Close())
	}
	return errors.Join(errs...)
}

// make makes a namespace and gives it its name, as `ip netns add` does.
func (s *spaces) make(name string) error {
	path, err := namespacePath(name)
	if err != nil {
		return err
	}
	if err := shareFolder(); err != nil {
		return err
	}
	place, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0)
	if err != nil {
		return err
	}
	place.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	s.current = nil
	if err := unix.Mount(ownNamespace, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount it on %s: %w", path, err)
	}
	file, err := os.Open(ownNamespace)
	if err != nil {
		return err
	}
	s.current = &space{file: file}
	s.opened[name] = s.current
	return nil
}

// removeNamespace takes a namespace's name away. It ends when nothing is in it any more.
func removeNamespace(name string) error {
	path, err := namespacePath(name)
	if err != nil {
		return err
	}
	// EINVAL: the file of one that was half made.
	err = unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// space returns a namespace, opened.
func (s *spaces) space(name string) (*space, error) {
	if found := s.opened[name]; found != nil {
		return found, nil
	}
	path, err := namespacePath(name)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s.opened[name] = &space{file: file}
	return s.opened[name], nil
}

// within does work with the thread in a namespace.
func (s *spaces) within(name string, work func() error) error {
	space, err := s.space(name)
	if err != nil {
		return err
	}
	if s.current != space {
		if err := unix.Setns(int(space.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter it: %w", err)
		}
		s.current = space
	}
	return work()
}

// ask sends a request about a namespace's links, addresses, neighbours or routes and returns what is answered.
func (s *spaces) ask(name string, request message) ([]message, error) {
	space, err := s.space(name)
	if err != nil {
		return nil, err
	}
	if space.route == nil {
		err := s.within(name, func() (err error) {
			space.route, err = dial(unix.NETLINK_ROUTE)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return space.route.ask(request)
}

func namespacePath(name string) (string, error) {
	if name == "" || strings.ContainsRune(name, '/') || strings.HasPrefix(name, ".") {
		return "", fmt.Errorf("%q is no name of a namespace", name)
	}
	return filepath.Join(namespaceDir, name), nil
}

// shareFolder makes the folder of names a mount of its own whose mounts are seen in all mount namespaces, and whose removals too: as
// `ip netns add` does, so that each finds what the other has made.
func shareFolder() error {
	if err := os.MkdirAll(namespaceDir, 0o755); err != nil {
		return err
	}
	folder, err := os.Open(namespaceDir)
	if err != nil {
		return err
	}
	defer folder.Close()
	if shared, err := isMountRoot(folder); shared || err != nil {
		return err
	}
	// One at a time, and not twice: each would copy all mounts below.
	if err := unix.Flock(int(folder.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", namespaceDir, err)
	}
	again, err := os.Open(namespaceDir)
	if err != nil {
		return err
	}
	defer again.Close()
	if shared, err := isMountRoot(again); shared || err != nil {
		return err
	}
	if err := unix.Mount(namespaceDir, namespaceDir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s on itself: %w", namespaceDir, err)
	}
	if err := unix.Mount("", namespaceDir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share the mounts of %s: %w", namespaceDir, err)
	}
	return nil
}

func isMountRoot(folder *os.File) (bool, error) {
	var stat unix.Statx_t
	if err := unix.Statx(int(folder.Fd()), "", unix.AT_EMPTY_PATH, 0, &stat); err != nil {
		return false, fmt.Errorf("look at %s: %w", folder.Name(), err)
	}
	return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}
