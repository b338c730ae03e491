package pieces

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/iotest"
	"time"
)

func noise(bytes int) []byte {
	content := make([]byte, bytes)
	_, _ = rand.Read(content)
	return content
}

func TestCopyIsExactAndWritesLargePieces(t *testing.T) {
	for _, size := range []int{0, 1, smallBytes - 1, smallBytes, smallBytes + 1, smallBytes + LargeBytes, 3*LargeBytes + 7} {
		content := noise(size)
		var to countedWrites
		if err := Copy(&to, iotest.HalfReader(bytes.NewReader(content))); err != nil || !bytes.Equal(to.Bytes(), content) {
			t.Errorf("%d bytes: %d arrive, %v", size, to.Len(), err)
		}
		if most := 2 + size/LargeBytes; to.writes > most {
			t.Errorf("%d bytes take %d writes", size, to.writes)
		}
	}
	for _, size := range []int{0, 1, smallBytes, LargeBytes} {
		for _, broken := range []error{errors.New("broken"), io.ErrUnexpectedEOF} {
			if err := Copy(io.Discard, io.MultiReader(bytes.NewReader(noise(size)), iotest.ErrReader(broken))); !errors.Is(err, broken) {
				t.Errorf("a reader's error after %d bytes is %v, not %v", size, err, broken)
			}
		}
	}
	if lent := Lent(); lent != 0 {
		t.Errorf("%d buffers are not given back", lent)
	}
}

type countedWrites struct {
	bytes.Buffer
	writes int
}

func (c *countedWrites) Write(p []byte) (int, error) {
	c.writes++
	return c.Buffer.Write(p)
}

func TestThereAreFewLargeBuffers(t *testing.T) {
	var taken []*Buffer
	for range largeMax + 3 {
		taken = append(taken, Take())
	}
	for i, buffer := range taken {
		if isLarge := len(buffer.Bytes) == LargeBytes; isLarge != (i < largeMax) {
			t.Errorf("buffer %d has %d bytes", i, len(buffer.Bytes))
		}
		buffer.Give()
	}
	if lent := Lent(); lent != 0 {
		t.Errorf("%d are still lent", lent)
	}
}

// connected is a Conn and its client.
func connected(t *testing.T) (*Conn, *net.TCPConn) {
	t.Helper()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := Listener{plain}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return server.(*Conn), client.(*net.TCPConn)
}

func TestConnReadsAheadAndIsExact(t *testing.T) {
	server, client := connected(t)
	content := noise(9 << 20)
	go func() {
		_, _ = client.Write(content)
		_ = client.CloseWrite()
	}()
	var got bytes.Buffer
	p := make([]byte, 2*directBytes)
	for i := 0; ; i++ {
		// All sizes in turn: those that read ahead, and those that do not.
		n, err := server.Read(p[:1+(i*977)%len(p)])
		got.Write(p[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got.Bytes(), content) {
		t.Errorf("%d bytes of %d, or others", got.Len(), len(content))
	}
	if lent := Lent(); lent != 0 {
		t.Errorf("%d buffers are held by a connection that has ended", lent)
	}
}

func TestConnHoldsNoBufferWhenIdleOrClosed(t *testing.T) {
	server, client := connected(t)
	go func() { _, _ = client.Write(make([]byte, 4<<20)) }()
	p := make([]byte, 4096)
	for Lent() == 0 {
		if _, err := server.Read(p); err != nil {
			t.Fatal(err)
		}
	}
	server.Close()
	if Lent() != 0 {
		t.Errorf("a closed connection holds %d buffers", Lent())
	}

	idle, _ := connected(t)
	idle.flow = flood
	if err := idle.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := idle.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) || Lent() != 0 {
		t.Errorf("an idle connection: %v, %d buffers", err, Lent())
	}
}

func TestDetachLosesNothing(t *testing.T) {
	server, client := connected(t)
	content := noise(3 << 20)
	go func() {
		_, _ = client.Write(content)
		_ = client.CloseWrite()
	}()
	var got bytes.Buffer
	p := make([]byte, 4096)
	for server.flow != flood || len(server.rest) == 0 {
		n, err := server.Read(p)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(p[:n])
	}
	plain, ahead := server.Detach()
	got.Write(ahead)
	if _, err := io.Copy(&got, plain); err != nil || !bytes.Equal(got.Bytes(), content) || Lent() != 0 {
		t.Errorf("%d bytes of %d, %v, %d buffers", got.Len(), len(content), err, Lent())
	}
}

func TestReadFromSendsAll(t *testing.T) {
	server, client := connected(t)
	content := noise(5<<20 + 3)
	sent := make(chan int64, 1)
	go func() {
		n, _ := server.ReadFrom(bytes.NewReader(content))
		server.Close()
		sent <- n
	}()
	got, err := io.ReadAll(client)
	if err != nil || !bytes.Equal(got, content) || <-sent != int64(len(content)) {
		t.Errorf("%d bytes of %d, %v", len(got), len(content), err)
	}
}
