// Package target tells where a request to the edge wants to go.
package target

import (
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// AgentPort is the agent's, for clients that name none.
const AgentPort = 49983

// Kind is what a request is for.
type Kind int

const (
	API Kind = iota
	Sandbox
	// Invalid requests name a sandbox in a way that leads nowhere; Message says what is wrong.
	Invalid
)

// Target is where a request wants to go.
type Target struct {
	Kind      Kind
	SandboxID string
	Port      int
	// Path is the one to send on, with its query.
	Path string
	// ViaProxyPath: asked through /proxy/…, whose callers expect AgentENV's answers for a paused sandbox.
	ViaProxyPath bool
	Message      string
}

// Head is what of a request tells.
type Head struct {
	// URI is the request's target as it was sent.
	URI string
	// Host may have a port.
	Host string
	// Header is the first value of a header; empty when it is absent.
	Header func(name string) string
}

// hostLabel is PORT-ID or PORT-ID-CLIENT, the first label of a sandbox's host name.
var hostLabel = regexp.MustCompile(`^(\d{1,5})-([a-z0-9]+)(?:-[a-z0-9]+)?$`)

// absolute: a request may name its target as to a proxy, `GET http://host/path`; it means the path.
var absolute = regexp.MustCompile(`^(?i:https?)://[^/?#]*`)

// Of reads the host name first, then E2B's headers (its SDKs always send them, and with E2B_SANDBOX_URL nothing else tells),
// then /proxy/… with AgentENV's headers. Everything else is the API's, and so is all for api.DOMAIN. domain has no port and may
// be empty.
func Of(head Head, domain string) Target {
	path := head.URI
	if !strings.HasPrefix(path, "/") {
		path = absolute.ReplaceAllString(path, "")
	}
	name := hostName(head.Host)
	label, _, _ := strings.Cut(name, ".")
	if match := hostLabel.FindStringSubmatch(label); match != nil {
		return sandbox(match[2], match[1], path, false)
	}
	if domain != "" && name == "api."+domain {
		return Target{Kind: API}
	}
	return byHeaders(head, path, domain != "" && name == "sandbox."+domain)
}

func byHeaders(head Head, path string, isSandboxHost bool) Target {
	viaProxyPath := path == "/proxy" || strings.HasPrefix(path, "/proxy/") || strings.HasPrefix(path, "/proxy?")
	id, port := head.Header("E2b-Sandbox-Id"), head.Header("E2b-Sandbox-Port")
	if viaProxyPath {
		if id == "" {
			id = head.Header("X-Agentenv-Sandbox-Id")
		}
		if port == "" {
			port = head.Header("X-Agentenv-Target-Port")
		}
	}
	switch {
	case id == "" && viaProxyPath:
		return invalid("/proxy needs the headers x-agentenv-sandbox-id and x-agentenv-target-port")
	case id == "" && isSandboxHost:
		return invalid("this host needs the headers e2b-sandbox-id and e2b-sandbox-port")
	case id == "":
		return Target{Kind: API}
	}
	if port == "" {
		port = strconv.Itoa(AgentPort)
	}
	if viaProxyPath {
		path = strings.TrimPrefix(path, "/proxy")
	}
	return sandbox(id, port, path, viaProxyPath)
}

func sandbox(id, portText, path string, viaProxyPath bool) Target {
	// The old form carried a client id after a dash.
	id, _, _ = strings.Cut(id, "-")
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || port == 0 {
		return invalid(fmt.Sprintf("the sandbox port must be a number from 1 to 65535, not %q", portText))
	}
	if path != "*" && !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return Target{Kind: Sandbox, SandboxID: id, Port: int(port), Path: path, ViaProxyPath: viaProxyPath}
}

func invalid(message string) Target {
	return Target{Kind: Invalid, Message: message}
}

// hostName is a host in lower case without its port.
func hostName(host string) string {
	if end := strings.LastIndexByte(host, ':'); end >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:end]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// reserved are the agent's routes that only the node may use.
var reserved = map[string]bool{
	"/init": true, "/memory": true, "/telemetry": true, "/forward": true, "/freeze": true, "/unfreeze": true, "/collapse": true,
	"/fsfreeze": true, "/fsthaw": true, "/upgrade": true,
}

// IsReserved tells, however the path is spelt: //init, /%69nit and /init/ name the same route.
func (t Target) IsReserved() bool {
	if t.Port != AgentPort {
		return false
	}
	bare, _, _ := strings.Cut(t.Path, "?")
	bare, _, _ = strings.Cut(bare, "#")
	decoded, err := url.PathUnescape(bare)
	if err != nil {
		decoded = bare
	}
	var parts []string
	for part := range strings.SplitSeq(decoded, "/") {
		switch part {
		case "", ".":
		case "..":
			parts = parts[:max(0, len(parts)-1)]
		default:
			parts = append(parts, part)
		}
	}
	return reserved["/"+strings.Join(parts, "/")]
}
