// Package answer has what the edge answers by itself. Texts and keys are wire facts: SDKs match `was not found` and `port is not
// open`, and read `code`.
package answer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"strconv"
	"strings"
)

// TrafficTokenHeader opens the ports of a sandbox without public traffic.
const TrafficTokenHeader = "E2b-Traffic-Access-Token"

// Answer is one that no service gave. It is also the error of whoever cannot go on without it.
type Answer struct {
	Status int
	title  string
	// heading is what a person reads first.
	heading string
	body    body
}

// body has its keys in the order of E2B's.
type body struct {
	SandboxID string `json:"sandboxId,omitempty"`
	Path      string `json:"path,omitempty"`
	Message   string `json:"message"`
	Port      int    `json:"port,omitempty"`
	Code      int    `json:"code"`
}

func (a *Answer) Error() string { return a.body.Message }

func of(status int, title string, body body) *Answer {
	body.Code = status
	return &Answer{Status: status, title: title, heading: title, body: body}
}

func NotFound(sandboxID string) *Answer {
	return of(http.StatusBadGateway, "Sandbox Not Found", body{SandboxID: sandboxID, Message: "The sandbox was not found"})
}

func PortClosed(sandboxID string, port int) *Answer {
	answer := of(http.StatusBadGateway, "Closed Port Error",
		body{SandboxID: sandboxID, Message: "The sandbox is running but port is not open", Port: port})
	answer.heading = fmt.Sprintf("There is no service running on port %d", port)
	return answer
}

// Paused is AgentENV's answer on /proxy/….
func Paused(sandboxID string) *Answer {
	return of(http.StatusGone, "Sandbox Paused",
		body{SandboxID: sandboxID, Message: fmt.Sprintf("sandbox %s is paused", sandboxID)})
}

func WakeRefused(sandboxID string) *Answer {
	return of(http.StatusForbidden, "Access Denied", body{SandboxID: sandboxID,
		Message: "The sandbox is paused, and waking it needs its access token (header X-Access-Token)"})
}

// TrafficTokenMissing and TrafficTokenWrong: the sandbox has no public traffic.
func TrafficTokenMissing(sandboxID string) *Answer {
	return of(http.StatusForbidden, "Missing Traffic Access Token", body{SandboxID: sandboxID,
		Message: "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing"})
}

func TrafficTokenWrong(sandboxID string) *Answer {
	return of(http.StatusForbidden, "Invalid Traffic Access Token", body{SandboxID: sandboxID,
		Message: "Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is invalid"})
}

// InTransition: it is being paused, resumed or forked, and could not be asked for another change just now.
func InTransition(sandboxID string) *Answer {
	return of(http.StatusConflict, "Sandbox Is Changing State", body{SandboxID: sandboxID,
		Message: "The sandbox is still changing its state; try again in a moment"})
}

// NoRoom: it is paused and the node is full.
func NoRoom(sandboxID string) *Answer {
	return of(http.StatusTooManyRequests, "No Room", body{SandboxID: sandboxID,
		Message: "The sandbox is paused, and there is no room to resume it now; try again in a moment"})
}

func TooManyConnections(sandboxID string) *Answer {
	return of(http.StatusTooManyRequests, "Too Many Connections", body{SandboxID: sandboxID,
		Message: "The sandbox has as many connections as it can have; try again in a moment"})
}

// NotWoken: it exists and its state is untouched, so trying again may help.
func NotWoken(sandboxID string) *Answer {
	return of(http.StatusServiceUnavailable, "Sandbox Not Resumed", body{SandboxID: sandboxID,
		Message: "The sandbox is paused and could not be resumed; try again in a moment"})
}

func Asleep(sandboxID string) *Answer {
	return of(http.StatusServiceUnavailable, "Sandbox Not Woken", body{SandboxID: sandboxID,
		Message: "The sandbox was idle and could not be woken; try again in a moment"})
}

func Reserved(path string) *Answer {
	bare, _, _ := strings.Cut(path, "?")
	return of(http.StatusNotFound, "Not Found",
		body{Path: bare, Message: bare + " is reserved for the E2B control plane"})
}

func Invalid(message string) *Answer {
	return of(http.StatusBadRequest, "Bad Request", body{Message: message})
}

func MethodRefused(method string) *Answer {
	return of(http.StatusMethodNotAllowed, "Method Not Allowed",
		body{Message: method + " is not served: this is no general proxy"})
}

func TooManyFields(most int) *Answer {
	return of(http.StatusRequestHeaderFieldsTooLarge, "Request Header Fields Too Large",
		body{Message: fmt.Sprintf("The request has more than %d header fields", most)})
}

func ControlDown() *Answer {
	return of(http.StatusServiceUnavailable, "Unavailable",
		body{Message: "The server is being restarted; try again in a moment"})
}

// ControlLost has no status that clients send again by themselves: what was asked may have been done.
func ControlLost() *Answer {
	return of(http.StatusInternalServerError, "Interrupted", body{
		Message: "The server was restarted in the middle of this request; see what it has done before you repeat it"})
}

// WantsHTML: HTML is for people only, a browser's own navigation and not a script's fetch.
func WantsHTML(header http.Header) bool {
	mode := header.Get("Sec-Fetch-Mode")
	return strings.HasPrefix(header.Get("User-Agent"), "Mozilla/") && (mode == "" || mode == "navigate") &&
		!strings.Contains(header.Get("Accept"), "json")
}

// Header sets the headers of the answer and returns its text.
func (a *Answer) Header(header http.Header, asHTML bool) []byte {
	contentType, text := "application/json; charset=utf-8", a.json()
	if asHTML {
		contentType, text = "text/html; charset=utf-8", a.html()
	}
	header.Set("Content-Type", contentType)
	header.Set("Content-Length", strconv.Itoa(len(text)))
	if a.Status == http.StatusTooManyRequests {
		header.Set("Retry-After", "1")
	}
	return text
}

func (a *Answer) json() []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(a.body)
	return bytes.TrimSuffix(text.Bytes(), []byte("\n"))
}

func (a *Answer) html() []byte {
	id := ""
	if a.body.SandboxID != "" {
		id = "<p><code>" + html.EscapeString(a.body.SandboxID) + "</code></p>"
	}
	return fmt.Appendf(nil, `<html><head><meta charset="utf-8"><title>%s</title></head><body><h1>%s</h1><p>%s</p>%s</body></html>`,
		html.EscapeString(a.title), html.EscapeString(a.heading), html.EscapeString(a.body.Message), id)
}

// Raw is the whole answer for a connection that is no HTTP server's any more.
func (a *Answer) Raw() []byte {
	header := http.Header{}
	text := a.Header(header, false)
	var raw bytes.Buffer
	fmt.Fprintf(&raw, "HTTP/1.1 %d %s\r\n", a.Status, http.StatusText(a.Status))
	_ = header.Write(&raw)
	raw.WriteString("Connection: close\r\n\r\n")
	raw.Write(text)
	return raw.Bytes()
}
