// Package identity holds who this sandbox is: what the last accepted init said about tokens, users, environment.
package identity

import (
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"

	"aenv/native/internal/envd/users"
)

// Identity is what one init says. It replaces the previous one as a whole, so that nothing of an earlier owner of a
// restored machine lives on.
type Identity struct {
	// AccessToken is asked of every caller; empty means that nobody is asked.
	AccessToken string
	// EnvVars are given to every process.
	EnvVars map[string]string
	// DefaultUser acts where a request names nobody; empty means "user" where it exists, else root.
	DefaultUser string
	// DefaultWorkdir is the folder of processes that name none; empty means the user's home.
	DefaultWorkdir string
	SandboxID      string
	TemplateID     string
	Hostname       string
	// Generation counts the starts of the sandbox's state; GenerationID is another at each of them, and empty where none has
	// been told.
	Generation   int
	GenerationID string
}

// NamesAs tells whether both make a machine the same sandbox, whatever else they say.
func (i Identity) NamesAs(other Identity) bool {
	return i.SandboxID == other.SandboxID && i.TemplateID == other.TemplateID && i.Hostname == other.Hostname && i.DefaultUser == other.DefaultUser
}

// Store keeps the current identity and the key that the next init must show.
type Store struct {
	users users.Database

	mu      sync.RWMutex
	current Identity
	initKey string
}

// NewStore returns a store with an empty identity, open to a first init.
func NewStore(database users.Database) *Store {
	return &Store{users: database}
}

// Accept replaces the identity, provided that key equals the one set by an earlier Accept. A non-empty newKey is asked
// of the next one. It tells whether the key was right.
func (s *Store) Accept(key, newKey string, next Identity) bool {
	next.EnvVars = maps.Clone(next.EnvVars)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.holdsKeyLocked(key) {
		return false
	}
	if newKey != "" {
		s.initKey = newKey
	}
	s.current = next
	return true
}

// HoldsKey tells whether key is the one that the next Accept asks for.
func (s *Store) HoldsKey(key string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.holdsKeyLocked(key)
}

func (s *Store) holdsKeyLocked(key string) bool {
	return s.initKey == "" || subtle.ConstantTimeCompare([]byte(key), []byte(s.initKey)) == 1
}

// Current returns the identity. Its map must not be changed.
func (s *Store) Current() Identity {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.current
}

// Users is the database that names are looked up in.
func (s *Store) Users() users.Database {
	return s.users
}

// UnknownUserError names a user that the sandbox does not have.
type UnknownUserError struct{ Name string }

func (e *UnknownUserError) Error() string {
	return fmt.Sprintf("invalid username: '%s'", e.Name)
}

// User looks a name up; the empty name is the default user. The error is an *UnknownUserError.
func (s *Store) User(name string) (users.User, error) {
	if name == "" {
		name = s.Current().DefaultUser
	}
	if name == "" {
		if user, ok := s.users.Lookup("user"); ok {
			return user, nil
		}
		name = "root"
	}
	user, ok := s.users.Lookup(name)
	if !ok {
		return users.User{}, &UnknownUserError{Name: name}
	}
	return user, nil
}

// RequestUser finds the user that a request acts as: the name in its Basic authorization, else the default user.
// Other authorization schemes are not for the agent and are ignored. The error is an *UnknownUserError.
func (s *Store) RequestUser(header http.Header) (users.User, error) {
	scheme, encoded, _ := strings.Cut(header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Basic") {
		return s.User("")
	}
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err != nil {
		return users.User{}, &UnknownUserError{Name: encoded}
	}
	// The password is always empty, and a name may be "uid:gid": what counts is the last colon.
	name := string(decoded)
	if end := strings.LastIndexByte(name, ':'); end >= 0 {
		name = name[:end]
	}
	return s.User(name)
}
