package users

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func database(t *testing.T) Database {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	passwd := "root:x:0:0:root:/root:/bin/bash\n# comment\nbroken:x\ndev:x:1000:1000:Dev,,,:/home/dev:/bin/sh\nbare:x:1001:1001:::\nlast:x:4294967295:0:::\n"
	group := "root:x:0:\ndev:x:1000:\naudio:x:29:dev,other\nvideo:x:44:other,dev\nempty:x:50:\n"
	for name, text := range map[string]string{"passwd": passwd, "group": group} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Database{Root: root}
}

// PROC-19: names, numbers, groups, homes.
func TestPROC19Lookup(t *testing.T) {
	d := database(t)
	cases := map[string]User{
		"root":      {Name: "root", Home: "/root", Shell: "/bin/bash", Groups: []uint32{0}},
		"dev":       {Name: "dev", UID: 1000, GID: 1000, Home: "/home/dev", Shell: "/bin/sh", Groups: []uint32{1000, 29, 44}},
		"1000":      {Name: "dev", UID: 1000, GID: 1000, Home: "/home/dev", Shell: "/bin/sh", Groups: []uint32{1000, 29, 44}},
		"bare":      {Name: "bare", UID: 1001, GID: 1001, Home: "/", Groups: []uint32{1001}},
		"1234":      {Name: "1234", UID: 1234, Home: "/", Groups: []uint32{0}},
		"1234:4321": {Name: "1234", UID: 1234, GID: 4321, Home: "/", Groups: []uint32{4321}},
		"dev:video": {Name: "dev", UID: 1000, GID: 44, Home: "/home/dev", Shell: "/bin/sh", Groups: []uint32{44}},
	}
	for spec, want := range cases {
		got, ok := d.Lookup(spec)
		if !ok || got.Name != want.Name || got.UID != want.UID || got.GID != want.GID || got.Home != want.Home ||
			got.Shell != want.Shell || !slices.Equal(got.Groups, want.Groups) {
			t.Errorf("Lookup(%q) = %+v, %v; want %+v", spec, got, ok, want)
		}
	}
	for _, spec := range []string{"", "ghost", "dev:ghosts", "-1", "broken", "dev\n", "4294967295", "4294967295:0", "dev:4294967295", "last"} {
		if user, ok := d.Lookup(spec); ok {
			t.Errorf("Lookup(%q) found %+v", spec, user)
		}
	}
}

// PROC-19: as docker run has it.
func TestPROC19ImageWithoutDatabase(t *testing.T) {
	d := Database{Root: t.TempDir()}
	root, ok := d.Lookup("root")
	if !ok || root.UID != 0 || root.Home != "/" {
		t.Fatalf("root = %+v, %v", root, ok)
	}
	if _, ok := d.Lookup("user"); ok {
		t.Fatal("found a user nobody made")
	}
	if d.NameOf(7) != "7" || d.GroupNameOf(8) != "8" {
		t.Fatal("ids without a name must be shown as numbers")
	}
}

func TestADatabaseThatIsAPipeIsEmpty(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(root+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(root+"/etc/passwd", 0o644); err != nil {
		t.Fatal(err)
	}
	if _, ok := (Database{Root: root}).Lookup("dev"); ok {
		t.Fatal("found a user in a pipe")
	}
}

// Each kind of change is seen by the very next look, also one that leaves the length and the time of the last writing.
func TestKeptDatabaseSeesEveryChange(t *testing.T) {
	d := Kept(database(t).Root)
	d.kept.settledAfter = 0
	passwd := filepath.Join(d.Root, "etc", "passwd")
	line := func(uid string) string { return "dev:x:" + uid + ":1000::/home/dev:/bin/sh\n" }
	// Until the file's stamps are others: that a change within one tick is not missed is what settledAfter is for.
	write := func(text string, at time.Time) {
		t.Helper()
		before := stampsOf(t, passwd)
		for stampsOf(t, passwd) == before {
			if err := os.WriteFile(passwd, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(passwd, at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	look := func(what string, want uint32, wantOK bool) {
		t.Helper()
		for range 2 {
			if user, ok := d.Lookup("dev"); ok != wantOK || user.UID != want {
				t.Fatalf("%s: dev is %d (%v), want %d (%v)", what, user.UID, ok, want, wantOK)
			}
		}
	}
	old := time.Now().Add(-time.Hour)
	look("at first", 1000, true)
	write(line("2000"), time.Now())
	look("written", 2000, true)
	write(line("3000"), old)
	look("as long as before, time set back", 3000, true)
	write(line("4000"), old)
	look("as long and of the same time as before", 4000, true)
	other := passwd + ".new"
	if err := os.WriteFile(other, []byte(line("5000")), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, passwd); err != nil {
		t.Fatal(err)
	}
	look("replaced", 5000, true)
	if err := os.Remove(passwd); err != nil {
		t.Fatal(err)
	}
	look("removed", 0, false)
	if err := syscall.Mkfifo(passwd, 0o644); err != nil {
		t.Fatal(err)
	}
	look("a pipe", 0, false)
}

func TestKeptDatabaseReadsASettledFileOnce(t *testing.T) {
	d := Kept(database(t).Root)
	passwd := filepath.Join(d.Root, "etc", "passwd")
	if _, ok := d.Lookup("dev"); !ok || d.kept.byPath[passwd].content != "" {
		t.Fatalf("what was just written is kept: %+v", d.kept.byPath)
	}
	d.kept.settledAfter = 0
	if _, ok := d.Lookup("dev"); !ok || d.kept.byPath[passwd].content == "" {
		t.Fatalf("a settled file is not kept: %+v", d.kept.byPath)
	}
	d.kept.byPath[passwd] = text{stampsOf(t, passwd), "kept:x:7:7::/:/bin/sh\n"}
	if user, ok := d.Lookup("kept"); !ok || user.UID != 7 {
		t.Fatalf("the kept text was not used: %+v, %v", user, ok)
	}
}

func stampsOf(t *testing.T, path string) version {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return versionOf(&stat)
}
