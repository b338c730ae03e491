package process

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// killPasses bounds the hunt for processes that are forked while it goes on.
const killPasses = 16

// killTree kills a process, its group, its session and every descendant. Everything found is stopped first and killed
// when nothing new appears, so that a fork cannot slip through between looking and killing.
// Precondition: pid cannot be reused meanwhile (it has not been waited for).
func killTree(pid int) {
	found := map[int]struct{}{pid: {}}
	_ = unix.Kill(-pid, unix.SIGSTOP)
	for range killPasses {
		fresh := descendants(pid, found)
		if len(fresh) == 0 {
			break
		}
		for _, member := range fresh {
			found[member] = struct{}{}
			_ = unix.Kill(member, unix.SIGSTOP)
		}
	}
	_ = unix.Kill(-pid, unix.SIGKILL)
	for member := range found {
		_ = unix.Kill(member, unix.SIGKILL)
	}
}

// descendants lists the processes that belong to the tree or session of root and are not known yet.
func descendants(root int, known map[int]struct{}) []int {
	relations := readRelations()
	self := os.Getpid()
	var fresh []int
	for pid, relation := range relations {
		if _, old := known[pid]; old || pid == self || pid == 1 {
			continue
		}
		if relation.session == root || relation.group == root || hasAncestor(relations, pid, known) {
			fresh = append(fresh, pid)
		}
	}
	return fresh
}

func hasAncestor(relations map[int]relation, pid int, known map[int]struct{}) bool {
	for range len(relations) {
		relation, ok := relations[pid]
		if !ok {
			return false
		}
		if _, member := known[relation.parent]; member {
			return true
		}
		pid = relation.parent
	}
	return false
}

type relation struct{ parent, group, session int }

func readRelations() map[int]relation {
	names := processNames()
	relations := make(map[int]relation, len(names))
	for _, name := range names {
		if relation, ok := readRelation(name); ok {
			pid, _ := strconv.Atoi(name)
			relations[pid] = relation
		}
	}
	return relations
}

// processNames lists the pids there are, as text.
func processNames() []string {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	return slices.DeleteFunc(names, func(name string) bool {
		_, err := strconv.Atoi(name)
		return err != nil
	})
}

// readProc reads a small file of /proc with as few system calls as there can be; it is "" when the process is gone.
func readProc(path string) string {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var buffer [1024]byte
	n, err := unix.Read(fd, buffer[:])
	if err != nil {
		return ""
	}
	return string(buffer[:n])
}

// readRelation parses "pid (name) state ppid pgrp session …"; the name may hold blanks and brackets.
func readRelation(pid string) (relation, bool) {
	stat := readProc("/proc/" + pid + "/stat")
	rest := stat[strings.LastIndexByte(stat, ')')+1:]
	field := strings.Fields(rest)
	if len(field) < 4 || field[0] == "Z" {
		return relation{}, false
	}
	parent, err1 := strconv.Atoi(field[1])
	group, err2 := strconv.Atoi(field[2])
	session, err3 := strconv.Atoi(field[3])
	return relation{parent, group, session}, err1 == nil && err2 == nil && err3 == nil
}
