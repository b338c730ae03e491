package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"aenv/native/internal/durable"
)

var silent = slog.New(slog.DiscardHandler)

func local(t *testing.T, dir, domain string) *Keeper {
	t.Helper()
	keeper, err := Local(t.Context(), dir, domain, silent)
	if err != nil {
		t.Fatal(err)
	}
	return keeper
}

func trust(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		t.Fatalf("%s holds no certificate", file)
	}
	return pool
}

func TestTheLocalAuthorityVouchesForItsDomainAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	leaf := local(t, dir, "e2b.localhost").current.Load().Leaf
	roots := trust(t, filepath.Join(dir, certFile))
	for _, name := range []string{"3000-iabc.e2b.localhost", "api.e2b.localhost", "sandbox.e2b.localhost", "e2b.localhost"} {
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	signer, err := readAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, template := range map[string]x509.Certificate{
		"bank.example": {DNSNames: []string{"bank.example"}},
		"192.0.2.1":    {IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}},
		"2001:db8::1":  {IPAddresses: []net.IP{net.ParseIP("2001:db8::1")}},
	} {
		stolen := signed(t, signer, template, x509.ExtKeyUsageServerAuth)
		if _, err := stolen.Verify(x509.VerifyOptions{DNSName: name, Roots: roots}); err == nil {
			t.Errorf("the authority vouches for %s", name)
		}
	}
	client := signed(t, signer, x509.Certificate{DNSNames: []string{"e2b.localhost"}}, x509.ExtKeyUsageClientAuth)
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := client.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: usages}); err == nil {
		t.Error("the authority vouches for clients")
	}
	info, err := os.Stat(filepath.Join(dir, authorityFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info.Mode(), err)
	}
}

// signed is what somebody with the authority's key could make of it.
func signed(t *testing.T, by *authority, template x509.Certificate, usage x509.ExtKeyUsage) *x509.Certificate {
	t.Helper()
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{usage}
	cert, err := sign(&template, by.cert, by.key, by.key)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// A start that broke off at any moment leaves what the next one goes on with.
func TestAnInterruptedStartLeavesAWholeAuthority(t *testing.T) {
	broken := map[string]func(t *testing.T, dir string){
		"before anything was written": func(*testing.T, string) {},
		"before clients got it":       func(t *testing.T, dir string) { makeOnly(t, dir, "e2b.localhost") },
		"before clients got it in place of another": func(t *testing.T, dir string) {
			local(t, dir, "another.test")
			makeOnly(t, dir, "e2b.localhost")
		},
		"in the middle of a file": func(t *testing.T, dir string) {
			leave(t, filepath.Join(dir, durable.TempPrefix+"1"))
		},
		"of a build that kept the key in a file of its own": func(t *testing.T, dir string) {
			leave(t, filepath.Join(dir, formerKeyFile))
		},
	}
	for name, breakOff := range broken {
		dir := t.TempDir()
		breakOff(t, dir)
		leaf := local(t, dir, "e2b.localhost").current.Load().Leaf
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "e2b.localhost", Roots: trust(t, filepath.Join(dir, certFile))}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) != 2 {
			t.Errorf("%s: %v is left, %v", name, files, err)
		}
	}
}

func leave(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("-----BEGIN"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func makeOnly(t *testing.T, dir, domain string) {
	t.Helper()
	if _, err := makeAuthority(dir, domain, time.Now()); err != nil {
		t.Fatal(err)
	}
}

func TestTheLocalAuthorityIsKept(t *testing.T) {
	dir := t.TempDir()
	local(t, dir, "e2b.localhost")
	before, err := os.ReadFile(filepath.Join(dir, certFile))
	if err != nil {
		t.Fatal(err)
	}
	again := local(t, dir, "e2b.localhost").current.Load().Leaf
	if _, err := again.Verify(x509.VerifyOptions{DNSName: "api.e2b.localhost", Roots: trust(t, filepath.Join(dir, certFile))}); err != nil {
		t.Error(err)
	}
	if after, _ := os.ReadFile(filepath.Join(dir, certFile)); string(after) != string(before) {
		t.Error("another start made another authority")
	}
	local(t, dir, "another.test")
	if after, _ := os.ReadFile(filepath.Join(dir, certFile)); string(after) == string(before) {
		t.Error("another domain got the same authority")
	}
}

func TestAnAuthorityNearItsEndIsReplaced(t *testing.T) {
	dir := t.TempDir()
	first, err := openAuthority(dir, "e2b.localhost", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	later, err := openAuthority(dir, "e2b.localhost", first.cert.NotAfter.Add(-leafLife/2))
	if err != nil {
		t.Fatal(err)
	}
	if later.cert.Equal(first.cert) {
		t.Error("it would end before what it signs")
	}
}

func TestADamagedAuthorityIsSaidAndNotReplaced(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{certFile, authorityFile} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("no PEM"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Local(t.Context(), dir, "e2b.localhost", silent); err == nil {
		t.Error("nothing was said")
	}
}

// pair writes a certificate of a new authority for a domain.
func pair(t *testing.T, dir, domain string) {
	t.Helper()
	signer, err := makeAuthority(t.TempDir(), domain, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := signer.leaf(domain, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(filepath.Join(dir, "own.key"), textOf("PRIVATE KEY", secret), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(filepath.Join(dir, "own.pem"), textOf("CERTIFICATE", leaf.Certificate[0]), 0o644); err != nil {
		t.Fatal(err)
	}
}

func nameNow(k *Keeper) string { return k.current.Load().Leaf.Subject.CommonName }

func TestOnesOwnCertificateIsReadAgainAndCutsNothing(t *testing.T) {
	dir := t.TempDir()
	pair(t, dir, "one.test")
	keeper, err := Files(t.Context(), filepath.Join(dir, "own.pem"), filepath.Join(dir, "own.key"), silent)
	if err != nil {
		t.Fatal(err)
	}
	client := echoOver(t, keeper.Config())
	pair(t, dir, "two.test")
	for deadline := time.Now().Add(10 * time.Second); nameNow(keeper) != "two.test"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the new certificate was not read")
		}
	}
	if _, err := client.Write([]byte("still")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(client, make([]byte, len("still"))); err != nil {
		t.Fatalf("the connection was cut: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "own.pem"), []byte("no PEM"), 0o644); err != nil {
		t.Fatal(err)
	}
	time.Sleep(lookEvery + 200*time.Millisecond)
	if nameNow(keeper) != "two.test" {
		t.Error("a wrong file took the place of a right one")
	}
}

// A pair that could not be read, for a reason that passes without a change of the files' states, is read all the same.
func TestACertificateThatCouldNotBeReadIsTriedAgain(t *testing.T) {
	dir := t.TempDir()
	signer, err := makeAuthority(dir, "test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, path, at := filepath.Join(dir, authorityFile), filepath.Join(dir, "own.pem"), time.Now()
	put := func(content []byte, at time.Time) {
		if err := errors.Join(os.WriteFile(path, content, 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	named := func(name string) []byte {
		cert := signed(t, signer, x509.Certificate{Subject: pkix.Name{CommonName: name}}, x509.ExtKeyUsageServerAuth)
		return textOf("CERTIFICATE", cert.Raw)
	}
	put(named("one.test"), at.Add(-time.Hour))
	complaints := make(complaints, 100)
	keeper, err := Files(t.Context(), path, key, slog.New(complaints))
	if err != nil {
		t.Fatal(err)
	}
	next := named("two.test")
	put(bytes.Repeat([]byte("x"), len(next)), at)
	select {
	case <-complaints:
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was said")
	}
	put(next, at)
	for deadline := time.Now().Add(30 * time.Second); nameNow(keeper) != "two.test"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it was not tried again")
		}
	}
	if len(complaints) > 0 {
		t.Errorf("the same was said %d times", 1+len(complaints))
	}
}

// complaints takes the errors of a log.
type complaints chan string

func (c complaints) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelError
}
func (c complaints) WithAttrs([]slog.Attr) slog.Handler { return c }
func (c complaints) WithGroup(string) slog.Handler      { return c }
func (c complaints) Handle(_ context.Context, record slog.Record) error {
	c <- record.Message
	return nil
}

// echoOver is a client of a server with such a configuration.
func echoOver(t *testing.T, config *tls.Config) net.Conn {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	context.AfterFunc(t.Context(), func() { _ = listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(conn, conn)
	}()
	client, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}
