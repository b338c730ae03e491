package users

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

func database(t *testing.T) Database {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	passwd := "root:x:0:0:root:/root:/bin/bash\n# comment\nbroken:x\ndev:x:1000:1000:Dev,,,:/home/dev:/bin/sh\nbare:x:1001:1001:::\n"
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
	for _, spec := range []string{"", "ghost", "dev:ghosts", "-1", "broken", "dev\n"} {
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
