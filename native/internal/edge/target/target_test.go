package target

import (
	"net/http"
	"testing"
)

const id = "iabcdefghij0123456789"

func of(uri, host string, fields map[string]string) Target {
	header := http.Header{}
	for name, value := range fields {
		header.Set(name, value)
	}
	return Of(Head{URI: uri, Host: host, Header: header.Get}, "e2b.test")
}

func to(path string, port int) Target {
	return Target{Kind: Sandbox, SandboxID: id, Port: port, Path: path}
}

func TestTheAPIGetsWhatNamesNoSandbox(t *testing.T) {
	for _, host := range []string{"127.0.0.1:8000", "localhost", "api.e2b.test", "8000.example.com", "sandbox.elsewhere", "[::1]:80", ""} {
		if got := of("/sandboxes", host, nil); got != (Target{Kind: API}) {
			t.Errorf("%s: %+v", host, got)
		}
	}
	if got := of("/proxyx", "x", map[string]string{"x-agentenv-sandbox-id": id}); got.Kind != API {
		t.Errorf("/proxyx: %+v", got)
	}
	if got := of("/sandboxes", "API.e2b.test:8443", map[string]string{"e2b-sandbox-id": id}); got.Kind != API {
		t.Errorf("the API's own host: %+v", got)
	}
}

func TestHostNamesWinInAnyDomainAndWithE2BsOldSuffix(t *testing.T) {
	for _, host := range []string{"3000-" + id + ".e2b.test", "3000-" + id + ".localhost:8000", "3000-" + id + "-00000000.e2b.test",
		"3000-IABCDEFGHIJ0123456789.E2B.test", "3000-" + id, "3000-" + id + ".e2b.test."} {
		if got := of("/a?b", host, map[string]string{"e2b-sandbox-id": "another"}); got != to("/a?b", 3000) {
			t.Errorf("%s: %+v", host, got)
		}
	}
}

func TestHeadersTellOnEveryOtherHost(t *testing.T) {
	fields := map[string]string{"e2b-sandbox-id": id, "e2b-sandbox-port": "49999"}
	for uri, path := range map[string]string{"/execute": "/execute", "http://x:1/a?b": "/a?b", "HTTP://x": "/", "*": "*", "http://x?q": "/?q"} {
		for _, host := range []string{"127.0.0.1:8000", "sandbox.e2b.test"} {
			if got := of(uri, host, fields); got != to(path, 49999) {
				t.Errorf("%s: %+v", uri, got)
			}
		}
	}
	if got := of("/health", "x", map[string]string{"e2b-sandbox-id": id + "-0000"}); got != to("/health", AgentPort) {
		t.Errorf("without a port: %+v", got)
	}
	if got := of("/", "sandbox.e2b.test:8443", nil); got.Kind != Invalid {
		t.Errorf("the sandboxes' host without headers: %+v", got)
	}
}

func TestAgentENVsHeadersTellBelowProxyOnly(t *testing.T) {
	fields := map[string]string{"x-agentenv-sandbox-id": id, "x-agentenv-target-port": "80"}
	for uri, path := range map[string]string{"/proxy/x/y?z=1": "/x/y?z=1", "/proxy": "/", "/proxy?z": "/?z", "/proxy/": "/"} {
		want := to(path, 80)
		want.ViaProxyPath = true
		if got := of(uri, "x", fields); got != want {
			t.Errorf("%s: %+v", uri, got)
		}
	}
	if got := of("/proxy/x", "x", nil); got.Kind != Invalid {
		t.Errorf("/proxy without headers: %+v", got)
	}
}

func TestPortsThatAreNoneAreRefused(t *testing.T) {
	for _, port := range []string{"0", "65536", "x", "-1", "80.5", " ", "+80"} {
		if got := of("/", "x", map[string]string{"e2b-sandbox-id": id, "e2b-sandbox-port": port}); got.Kind != Invalid {
			t.Errorf("%q: %+v", port, got)
		}
	}
}

func TestTheNodesOwnRoutesAreFoundHoweverTheyAreSpelt(t *testing.T) {
	for _, path := range []string{"/init", "/init?x=1", "//init", "/./init", "/%69nit", "/init/", "/%2finit", "/x/../init", "/forward?port=1", "/memory", "/telemetry"} {
		if !to(path, AgentPort).IsReserved() {
			t.Errorf("%s is free", path)
		}
		if to(path, 3000).IsReserved() {
			t.Errorf("%s is reserved on other ports", path)
		}
	}
	for _, path := range []string{"/health", "/files?path=/init", "/initial", "/%", "*"} {
		if to(path, AgentPort).IsReserved() {
			t.Errorf("%s is reserved", path)
		}
	}
}
