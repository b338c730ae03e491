package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// smallConnections is how many connections ask for small answers at once.
const smallConnections = 8

// question is what a client asks for, and how often or how much.
type question struct {
	url    *url.URL
	number int64
	header http.Header
}

func questionOf(rawURL, number string, fields []string) (*question, error) {
	parsed, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	for _, field := range fields {
		name, value, ok := strings.Cut(field, ":")
		if !ok {
			return nil, fmt.Errorf("%q is no NAME:VALUE", field)
		}
		header.Set(name, value)
	}
	return &question{url: parsed, number: n, header: header}, nil
}

// dial opens a connection and writes a head on it.
func (q *question) dial(method, path string, more ...string) (net.Conn, *bufio.Reader, error) {
	conn, err := net.Dial("tcp", q.url.Host)
	if err != nil {
		return nil, nil, err
	}
	if err := q.ask(conn, method, path, more...); err != nil {
		return nil, nil, err
	}
	return conn, bufio.NewReader(conn), nil
}

func (q *question) ask(conn net.Conn, method, path string, more ...string) error {
	var head strings.Builder
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, q.url.Host)
	_ = q.header.Write(&head)
	for _, line := range more {
		head.WriteString(line + "\r\n")
	}
	_, err := conn.Write([]byte(head.String() + "\r\n"))
	return err
}

func (q *question) down() (map[string]float64, error) {
	start := time.Now()
	conn, reader, err := q.dial("GET", fmt.Sprintf("/down?bytes=%d", q.number))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := http.ReadResponse(reader, nil)
	if err != nil {
		return nil, err
	}
	n, err := io.CopyBuffer(onlyWriter{io.Discard}, answer.Body, make([]byte, bufferBytes))
	if err != nil || n != q.number {
		return nil, fmt.Errorf("%s: %d of %d bytes: %v", answer.Status, n, q.number, err)
	}
	return map[string]float64{"seconds": time.Since(start).Seconds()}, nil
}

func (q *question) up() (map[string]float64, error) {
	start := time.Now()
	conn, reader, err := q.dial("POST", "/up", fmt.Sprintf("Content-Length: %d", q.number))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	zeros := make([]byte, bufferBytes)
	for left := q.number; left > 0; {
		n, err := conn.Write(zeros[:min(left, bufferBytes)])
		if err != nil {
			return nil, err
		}
		left -= int64(n)
	}
	answer, err := http.ReadResponse(reader, nil)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil || string(text) != strconv.FormatInt(q.number, 10) {
		return nil, fmt.Errorf("%s: %q: %v", answer.Status, text, err)
	}
	return map[string]float64{"seconds": time.Since(start).Seconds()}, nil
}

// small asks again and again on each of its connections, for so many seconds.
func (q *question) small() (map[string]float64, error) {
	var answered atomic.Int64
	var failure atomic.Pointer[error]
	start := time.Now()
	end := start.Add(time.Duration(q.number) * time.Second)
	var group sync.WaitGroup
	for range smallConnections {
		group.Go(func() {
			if err := q.askUntil(end, &answered); err != nil {
				failure.Store(&err)
			}
		})
	}
	group.Wait()
	if err := failure.Load(); err != nil {
		return nil, *err
	}
	return map[string]float64{"perSecond": float64(answered.Load()) / time.Since(start).Seconds()}, nil
}

func (q *question) askUntil(end time.Time, answered *atomic.Int64) error {
	conn, reader, err := q.dial("GET", "/small")
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		answer, err := http.ReadResponse(reader, nil)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %v", answer.Status, err)
		}
		answered.Add(1)
		if time.Now().After(end) {
			return nil
		}
		if err := q.ask(conn, "GET", "/small"); err != nil {
			return err
		}
	}
}

// idle opens so many upgraded connections, says so, and holds them until its input ends.
func (q *question) idle() error {
	conns := make([]net.Conn, 0, q.number)
	for range q.number {
		conn, reader, err := q.dial("GET", "/idle", "Connection: Upgrade", "Upgrade: websocket")
		if err != nil {
			return err
		}
		answer, err := http.ReadResponse(reader, nil)
		if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
			return fmt.Errorf("connection %d was not upgraded: %v", len(conns), err)
		}
		conns = append(conns, conn)
	}
	if err := say(map[string]float64{"open": float64(len(conns))}, nil); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	for _, conn := range conns {
		_ = conn.Close()
	}
	return err
}
