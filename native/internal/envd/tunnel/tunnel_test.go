package tunnel

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"aenv/native/internal/envd/pieces"
)

// pair is two ends of one connection.
func pair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	far, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close(); near.Close() })
	return far.(*net.TCPConn), near.(*net.TCPConn)
}

func TestNoMoreThanMax(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	var tunnels Tunnels
	tunnels.open.Store(Max - 1)
	conn, err := tunnels.Open(context.Background(), port)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tunnels.Open(context.Background(), port); !errors.Is(err, ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	tunnels.Close(conn)
	conn, err = tunnels.Open(context.Background(), port)
	if err != nil {
		t.Fatalf("after one has gone: %v", err)
	}
	tunnels.Close(conn)
	listener.Close()
	if _, err := tunnels.Open(context.Background(), port); !errors.Is(err, ErrNotOpen) || tunnels.open.Load() != Max-1 {
		t.Errorf("nobody listens: %v, %d open", err, tunnels.open.Load())
	}
}

// A client that has said its last word and is then lost does not leave its tunnel behind, though the service is silent.
func TestALostClientEndsTheTunnel(t *testing.T) {
	outside, client := pair(t)
	service, inside := pair(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Join(client, service, nil)
	}()
	_ = outside.CloseWrite()
	if _, err := inside.Read(make([]byte, 1)); err == nil {
		t.Fatal("the end did not arrive")
	}
	select {
	case <-ended:
		t.Fatal("a half-closed tunnel ended")
	case <-time.After(50 * time.Millisecond):
	}
	_ = outside.SetLinger(0)
	outside.Close()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("the tunnel is still there")
	}
}

func TestBuffersAreGivenBack(t *testing.T) {
	outside, client := pair(t)
	service, inside := pair(t)
	go Join(client, service, nil)
	go func() {
		_, _ = outside.Write(make([]byte, 4<<20))
		_ = outside.CloseWrite()
	}()
	if n, err := inside.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Fatal(err)
	}
	// It is not read any further: whoever writes to it holds one buffer, the idle direction none.
	if err := inside.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := inside.Read(make([]byte, 1<<20)); errors.Is(err, os.ErrDeadlineExceeded) || err != nil {
			break
		}
	}
	if lent := pieces.Lent(); lent != 0 {
		t.Errorf("%d buffers are held by a tunnel that carries nothing", lent)
	}
}
