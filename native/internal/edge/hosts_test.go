package edge

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"testing"
)

// rawService serves in the sandbox and hands on each head as it came, byte by byte.
func (w *world) rawService(t *testing.T) (host string, heads <-chan string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	came := make(chan string, 10)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerRaw(conn, came)
		}
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port + "-" + sandboxID + ".e2b.test", came
}

// answerRaw tells of one head and answers it. Precondition: there is no body.
func answerRaw(conn net.Conn, came chan<- string) {
	defer conn.Close()
	var head strings.Builder
	reader := bufio.NewReader(conn)
	for !strings.HasSuffix(head.String(), "\r\n\r\n") {
		line, err := reader.ReadString('\n')
		if err != nil {
			return
		}
		head.WriteString(line)
	}
	came <- head.String()
	_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
}

func TestARequestHasOneHostAndAMethodThatIsAToken(t *testing.T) {
	w := openToBoth(t, func(http.ResponseWriter, *http.Request) {})
	host, heads := w.rawService(t)
	for _, c := range []struct {
		name, method, path string
		// hosts are the pseudo header, then fields.
		hosts []string
		want  int
	}{
		{"one", "GET", "/", []string{host}, 200},
		{"the same twice", "GET", "/", []string{host, host}, 200},
		{"in a field alone", "GET", "/", []string{"", host}, 200},
		{"another", "GET", "/", []string{host, "localhost"}, 400},
		{"two others in fields", "GET", "/", []string{"", host, "localhost"}, 400},
		{"an empty one", "GET", "/", []string{host, ""}, 400},
		{"letters of no host", "GET", "/", []string{host + "\u00e9"}, 400},
		{"own method", "M-SEARCH", "/", []string{host}, 200},
		{"method in other letters", "G\u00cbT", "/", []string{host}, 400},
		{"method with a line", "GET / HTTP/1.1\r\nX: y\r\n\r\nGET", "/", []string{host}, 400},
		{"method with a colon", "GET:", "/", []string{host}, 400},
		{"path with a line", "GET", "/ HTTP/1.1\r\nX: y", []string{host}, 400},
	} {
		fields := []string{":method", c.method, ":scheme", "http", ":path", c.path}
		if c.hosts[0] != "" {
			fields = append(fields, ":authority", c.hosts[0])
		}
		for _, more := range c.hosts[1:] {
			fields = append(fields, "host", more)
		}
		client := w.http2(t)
		client.head(t, 1, true, fields...)
		status, _ := client.answer(t, 1)
		// Go's server resets the stream of what it sees is wrong by itself.
		if status != c.want && (status != 0 || c.want == 200) {
			t.Errorf("%s: %d", c.name, status)
		}
		select {
		case head := <-heads:
			if c.want != 200 || strings.Count(strings.ToLower(head), "\r\nhost: ") != 1 || !strings.HasPrefix(head, c.method+" "+c.path+" HTTP/1.1\r\nHost: "+host+"\r\n") {
				t.Errorf("%s: the service got %q", c.name, head)
			}
		default:
			if c.want == 200 {
				t.Errorf("%s: the service got nothing", c.name)
			}
		}
	}
	for _, hosts := range []string{"Host: " + host + "\r\nHost: localhost\r\n", "Host: " + host + "\r\nHost: " + host + "\r\n"} {
		if said := w.say(t, "GET / HTTP/1.1\r\n"+hosts+"Connection: close\r\n\r\n"); statusOf(t, said) != 400 {
			t.Errorf("%q: %q", hosts, said)
		}
	}
}
