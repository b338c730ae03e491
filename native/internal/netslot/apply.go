package netslot

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Apply carries out a plan up to the first error; what was done before it stays.
func Apply(plan Plan) error {
	return apart(func(spaces *spaces) error {
		if err := spaces.removeAll(plan.Remove); err != nil {
			return err
		}
		made := map[string]bool{}
		for _, name := range plan.Namespaces {
			if err := spaces.make(name); err != nil {
				return fmt.Errorf("make namespace %s: %w", name, err)
			}
			made[name] = true
		}
		for _, rules := range plan.Rules {
			if err := spaces.loadRules(rules, made); err != nil {
				return err
			}
		}
		for _, name := range plan.Forwarding {
			if err := spaces.within(name, forward); err != nil {
				return fmt.Errorf("switch on IPv4 forwarding in %s: %w", called(name), err)
			}
		}
		for _, pair := range plan.Pairs {
			if err := spaces.makePair(pair); err != nil {
				return fmt.Errorf("make the links %s and %s: %w", pair.Ends[0], pair.Ends[1], err)
			}
		}
		for _, set := range plan.Interfaces {
			if err := spaces.setUp(set); err != nil {
				return fmt.Errorf("link %s in %s: %w", set.Name, called(set.Namespace), err)
			}
		}
		return nil
	})
}

// loadRules replaces nothing in namespaces that were just made.
func (s *spaces) loadRules(rules Rules, made map[string]bool) error {
	for _, name := range rules.Namespaces {
		load := func() error { return loadTables(rules.Tables, !made[name]) }
		if err := s.within(name, load); err != nil {
			return fmt.Errorf("load the rules of %s: %w", called(name), err)
		}
	}
	return nil
}

func (s *spaces) removeAll(removal Removal) error {
	for _, name := range removal.Links {
		if err := s.removeLink(name); err != nil {
			return fmt.Errorf("remove link %s: %w", name, err)
		}
	}
	for _, set := range removal.Interfaces {
		if err := s.strip(set); err != nil {
			return fmt.Errorf("link %s in %s: %w", set.Name, called(set.Namespace), err)
		}
	}
	for _, name := range removal.Namespaces {
		if err := removeNamespace(name); err != nil {
			return fmt.Errorf("remove namespace %s: %w", name, err)
		}
	}
	return nil
}

// apart runs work on a thread of its own, which ends with it: it may be in any namespace by then.
func apart(work func(*spaces) error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		spaces, err := openSpaces()
		if err == nil {
			err = errors.Join(work(spaces), spaces.close())
		}
		result <- err
	}()
	return <-result
}

const ipForward = "/proc/sys/net/ipv4/ip_forward"

// forward passes IPv4 packets on in the thread's namespace. Written only when it is off, which it is not where the host's first
// namespace has it on: /proc/sys may be there to read only.
func forward() error {
	text, err := os.ReadFile(ipForward)
	if err != nil || len(text) > 0 && text[0] != '0' {
		return err
	}
	// os.WriteFile would try to create it.
	file, err := os.OpenFile(ipForward, unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString("1\n")
	return errors.Join(err, file.Close())
}

func called(namespace string) string {
	if namespace == "" {
		return "the host"
	}
	return namespace
}

func (e End) String() string {
	return fmt.Sprintf("%s (%s)", e.Name, called(e.Namespace))
}
