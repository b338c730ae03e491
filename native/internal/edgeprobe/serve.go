package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// bufferBytes is what a system call inside carries: each is dear there, so it decides how fast bytes go.
const bufferBytes = 1 << 20

// serve answers GET /down?bytes=N, POST /up, GET /small, and upgrades GET /idle, for ever.
func serve(address string) error {
	zeros := make([]byte, bufferBytes)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /down", func(w http.ResponseWriter, r *http.Request) {
		left, err := strconv.ParseInt(r.URL.Query().Get("bytes"), 10, 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Length", strconv.FormatInt(left, 10))
		for left > 0 {
			n, err := w.Write(zeros[:min(left, bufferBytes)])
			if err != nil {
				return
			}
			left -= int64(n)
		}
	})
	mux.HandleFunc("POST /up", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.CopyBuffer(onlyWriter{io.Discard}, r.Body, make([]byte, bufferBytes))
		if err != nil {
			return
		}
		_, _ = fmt.Fprint(w, n)
	})
	mux.HandleFunc("GET /small", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(zeros[:100])
	})
	mux.HandleFunc("GET /idle", idle)
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: time.Minute}
	return server.ListenAndServe()
}

// onlyWriter hides io.Discard's own way of reading, which has small buffers.
type onlyWriter struct{ io.Writer }

// idle keeps an upgraded connection that says nothing until its client leaves.
func idle(w http.ResponseWriter, _ *http.Request) {
	conn, stream, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_, err = stream.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	if err == nil {
		err = stream.Flush()
	}
	if err != nil {
		_ = conn.Close()
		return
	}
	go func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}(conn)
}
