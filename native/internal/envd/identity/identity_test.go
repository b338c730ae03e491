package identity

import (
	"encoding/base64"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"aenv/native/internal/envd/users"
)

func TestUserOfARequest(t *testing.T) {
	root := t.TempDir()
	passwd := filepath.Join(root, "etc", "passwd")
	if err := os.Mkdir(filepath.Dir(passwd), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(passwd, []byte("root:x:0:0::/root:\ndev:x:7:7::/dev:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	store := NewStore(users.Database{Root: root})
	check := func(authorization, want string) {
		t.Helper()
		user, err := store.RequestUser(http.Header{"Authorization": {authorization}})
		var unknown *UnknownUserError
		if errors.As(err, &unknown) {
			user.Name = "unknown " + unknown.Name
		}
		if user.Name != want {
			t.Errorf("%q acts as %q, want %q", authorization, user.Name, want)
		}
	}
	basic := func(text string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)) }
	check("", "root")
	check("Bearer token", "root")
	check(basic("dev:"), "dev")
	check(basic("7:7:"), "dev")
	check(basic("ghost:"), "unknown ghost")
	check("Basic !", "unknown !")
	// The template's user first, then "user" where the image has one, then root.
	if err := os.WriteFile(passwd, []byte("root:x:0:0::/root:\nuser:x:9:9::/home/user:\ndev:x:7:7::/dev:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	check("", "user")
	store.Accept("", "", Identity{DefaultUser: "dev"})
	check("", "dev")
	store.Accept("", "", Identity{DefaultUser: "gone"})
	check("", "unknown gone")
}
