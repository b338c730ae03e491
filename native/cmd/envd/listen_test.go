package main

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A probe would wake the runtime of a sandbox that stands still.
func TestConnectionsAreNotProbedWhileTheyMayBeIdle(t *testing.T) {
	listener, err := listenAt("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var idleSeconds int
	if err := raw.Control(func(fd uintptr) {
		idleSeconds, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
	}); err != nil {
		t.Fatal(err)
	}
	if idle := time.Duration(idleSeconds) * time.Second; idle < idleTimeout {
		t.Errorf("the first probe comes after %v, and a connection may be idle for %v (%v)", idle, idleTimeout, err)
	}
}
