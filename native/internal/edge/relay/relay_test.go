package relay

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"
)

// connected is two ends of one connection.
func connected(t *testing.T) (far, near *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialled, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
}

// secured is the same with TLS between the two.
func secured(t *testing.T) (far net.Conn, bare *net.TCPConn, near net.Conn) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	server.Close()
	bare, accepted := connected(t)
	client, ours := tls.Client(bare, &tls.Config{InsecureSkipVerify: true}), tls.Server(accepted, server.TLS)
	go func() { _ = client.Handshake() }()
	if err := ours.Handshake(); err != nil {
		t.Fatal(err)
	}
	return client, bare, ours
}

// Either side may have said its last word, and be lost while the other is silent.
func TestTheLossOfASideThatHasEndedEndsBoth(t *testing.T) {
	t.Run("client", func(t *testing.T) {
		far, near := connected(t)
		loses(t, far, far, near, func(near, other Side, done func()) { Join(near, other, done) })
	})
	t.Run("service", func(t *testing.T) {
		far, near := connected(t)
		loses(t, far, far, near, func(near, other Side, done func()) { Join(other, near, done) })
	})
	t.Run("client with TLS", func(t *testing.T) {
		far, bare, near := secured(t)
		loses(t, far, bare, near, func(near, other Side, done func()) { Join(near, other, done) })
	})
}

func loses(t *testing.T, far net.Conn, bare *net.TCPConn, near net.Conn, join func(near, other Side, done func())) {
	silent, b := connected(t)
	ended := make(chan struct{})
	join(Side{Conn: near}, Side{Conn: b}, func() { close(ended) })
	if _, err := far.Write([]byte("last")); err != nil {
		t.Fatal(err)
	}
	_ = far.(interface{ CloseWrite() error }).CloseWrite()
	if said, err := io.ReadAll(silent); string(said) != "last" || err != nil {
		t.Fatalf("%q, %v", said, err)
	}
	if _, err := silent.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(far, make([]byte, len("answer"))); err != nil {
		t.Fatalf("what is said after the other's end does not arrive: %v", err)
	}
	select {
	case <-ended:
		t.Fatal("a half-closed connection ended")
	case <-time.After(50 * time.Millisecond):
	}
	_ = bare.SetLinger(0)
	_ = bare.Close()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("nobody notices")
	}
	var err error
	for deadline := time.Now().Add(5 * time.Second); err == nil && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		_, err = silent.Write([]byte("more"))
	}
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the other side hears %v", err)
	}
}
