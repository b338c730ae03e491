// Package users reads the sandbox's user database.
//
// Programs in the sandbox add users whenever they like, and the image decides which files exist at all, so each time it is
// looked whether the files are still the ones that were read. Everything is plain parsing of /etc/passwd and /etc/group,
// without libc.
package users

import (
	"bufio"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// User is an account as a process needs it.
type User struct {
	// Name is the account's name, or the number for an id without an account.
	Name string
	UID  uint32
	GID  uint32
	// Groups are the supplementary groups.
	Groups []uint32
	// Home is "/" where the database has none.
	Home string
	// Shell may be empty.
	Shell string
}

// Database is a pair of passwd and group files.
type Database struct {
	// Root is the folder that holds etc/passwd and etc/group; empty is "/".
	Root string
	// kept is nil where the files are read anew each time.
	kept *texts
}

// Kept returns a database that reads its files again only when they are others than before: every command looks up a user,
// and reading a file costs several calls of a kernel that are dear in a sandbox.
func Kept(root string) Database {
	return Database{Root: root, kept: &texts{settledAfter: settledAfter}}
}

type passwdLine struct {
	name, home, shell string
	uid, gid          uint32
}

// Lookup finds a user by "name", "uid", "name:group" or "uid:gid", the forms an image's USER may have.
// A number needs no account. ok is false for a name nobody has.
func (d Database) Lookup(spec string) (user User, ok bool) {
	name, group, hasGroup := strings.Cut(spec, ":")
	if name == "" || strings.ContainsAny(spec, "\n\x00") {
		return User{}, false
	}
	user, ok = d.account(name)
	if !ok {
		return User{}, false
	}
	if !hasGroup {
		user.Groups = d.groupsOf(user)
		return user, true
	}
	gid, ok := d.groupID(group)
	if !ok {
		return User{}, false
	}
	user.GID = gid
	user.Groups = []uint32{gid}
	return user, true
}

// NameOf gives the name of a user id, or the number as text.
func (d Database) NameOf(uid uint32) string {
	name := strconv.FormatUint(uint64(uid), 10)
	d.eachPasswd(func(line passwdLine) bool {
		if line.uid == uid {
			name = line.name
			return false
		}
		return true
	})
	return name
}

// GroupNameOf gives the name of a group id, or the number as text.
func (d Database) GroupNameOf(gid uint32) string {
	name := strconv.FormatUint(uint64(gid), 10)
	d.eachGroup(func(group string, id uint32, _ []string) bool {
		if id == gid {
			name = group
			return false
		}
		return true
	})
	return name
}

func (d Database) account(name string) (User, bool) {
	number, numeric := parseID(name)
	var found *passwdLine
	d.eachPasswd(func(line passwdLine) bool {
		if line.name == name {
			found = &line
			return false
		}
		if numeric && found == nil && line.uid == number {
			found = &line
		}
		return true
	})
	if found != nil {
		home := found.home
		if home == "" {
			home = "/"
		}
		return User{Name: found.name, UID: found.uid, GID: found.gid, Home: home, Shell: found.shell}, true
	}
	if numeric {
		return User{Name: name, UID: number, Home: "/"}, true
	}
	if name == "root" {
		// An image without a user database still has a root.
		return User{Name: "root", Home: "/"}, true
	}
	return User{}, false
}

func (d Database) groupID(name string) (uint32, bool) {
	id, ok := parseID(name)
	d.eachGroup(func(group string, gid uint32, _ []string) bool {
		if group == name {
			id, ok = gid, true
			return false
		}
		return true
	})
	return id, ok
}

func (d Database) groupsOf(user User) []uint32 {
	groups := []uint32{user.GID}
	d.eachGroup(func(_ string, gid uint32, members []string) bool {
		if slices.Contains(members, user.Name) && !slices.Contains(groups, gid) {
			groups = append(groups, gid)
		}
		return true
	})
	return groups
}

func (d Database) eachPasswd(visit func(passwdLine) bool) {
	d.eachLine("etc/passwd", 7, func(field []string) bool {
		uid, uidOK := parseID(field[2])
		gid, gidOK := parseID(field[3])
		if !uidOK || !gidOK {
			return true
		}
		return visit(passwdLine{name: field[0], uid: uid, gid: gid, home: field[5], shell: field[6]})
	})
}

func (d Database) eachGroup(visit func(name string, gid uint32, members []string) bool) {
	d.eachLine("etc/group", 4, func(field []string) bool {
		gid, ok := parseID(field[2])
		if !ok {
			return true
		}
		return visit(field[0], gid, strings.Split(field[3], ","))
	})
}

// eachLine visits the well-formed lines of a file; a missing file has none.
func (d Database) eachLine(name string, fields int, visit func([]string) bool) {
	root := d.Root
	if root == "" {
		root = "/"
	}
	path := filepath.Join(root, name)
	var text io.Reader
	if kept, ok := d.kept.get(path); ok {
		text = strings.NewReader(kept)
	} else {
		// Whatever stands there, opening it does not wait.
		file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return
		}
		defer file.Close()
		text = d.kept.read(path, file)
	}
	scanner := bufio.NewScanner(text)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		field := strings.Split(strings.TrimSpace(scanner.Text()), ":")
		if len(field) == fields && field[0] != "" && !visit(field) {
			return
		}
	}
}

// parseID reads the number of a user or group. The largest is nobody's: chown and setuid take it for "leave it as it is".
func parseID(text string) (uint32, bool) {
	id, err := strconv.ParseUint(text, 10, 32)
	return uint32(id), err == nil && id != math.MaxUint32
}
