package forward

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// hopByHop headers speak of one connection, not of the message. How long a message is, is said anew on each: a client that
// could have its own word dropped (`Connection: Content-Length`) would have its body taken for the next request.
var hopByHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Transfer-Encoding": true, "Te": true, "Trailer": true,
	"Upgrade": true, "Http2-Settings": true, "Content-Length": true,
}

// namedByConnection are the headers that `Connection` itself names.
func namedByConnection(header http.Header) map[string]bool {
	var named map[string]bool
	for _, value := range header["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); !hopByHop[name] && !strings.EqualFold(name, "close") {
				if named == nil {
					named = map[string]bool{}
				}
				named[name] = true
			}
		}
	}
	return named
}

// endToEnd calls each with every header that is the message's.
func endToEnd(header http.Header, each func(name string, values []string)) {
	named := namedByConnection(header)
	for name, values := range header {
		if !hopByHop[name] && !named[name] {
			each(name, values)
		}
	}
}

// headOf is the request as it is sent on. Framing and trailers are those of the client's.
func headOf(r *http.Request, to To) []byte {
	var head bytes.Buffer
	head.Grow(1024)
	begin(&head, r, to)
	switch {
	case r.ContentLength < 0:
		head.WriteString("Transfer-Encoding: chunked\r\n")
		to.eachTrailer(r.Trailer, func(name string, _ []string) { line(&head, "Trailer", name) })
	case r.ContentLength > 0 || r.Header.Get("Content-Length") != "":
		fmt.Fprintf(&head, "Content-Length: %d\r\n", r.ContentLength)
	}
	head.WriteString("\r\n")
	return head.Bytes()
}

// upgradeHeadOf is the same for an upgrade with a body of so many bytes: what comes behind that belongs to the connection.
func upgradeHeadOf(r *http.Request, to To, bodyBytes int) []byte {
	var head bytes.Buffer
	begin(&head, r, to)
	line(&head, "Connection", "Upgrade")
	line(&head, "Upgrade", r.Header.Get("Upgrade"))
	if HasBody(r) || r.Header.Get("Content-Length") != "" {
		fmt.Fprintf(&head, "Content-Length: %d\r\n", bodyBytes)
	}
	head.WriteString("\r\n")
	return head.Bytes()
}

func begin(head *bytes.Buffer, r *http.Request, to To) {
	host := to.Host
	if host == "" {
		host = r.Host
	}
	fmt.Fprintf(head, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, to.Path, host)
	endToEnd(r.Header, func(name string, values []string) {
		// HTTP/2 leaves a host that is a field among the others; here it has its line.
		if name == "Host" || to.Drop != nil && to.Drop(name, values) {
			return
		}
		for _, value := range values {
			line(head, name, value)
		}
	})
	for name, values := range to.Extra {
		for _, value := range values {
			line(head, name, value)
		}
	}
}

func line(head *bytes.Buffer, name, value string) {
	head.WriteString(name)
	head.WriteString(": ")
	head.WriteString(value)
	head.WriteString("\r\n")
}

// setHead makes the answer's headers the client's. What a service did not say is not said for it.
func setHead(header http.Header, said *http.Response) {
	header["Date"], header["Content-Type"] = nil, nil
	endToEnd(said.Header, func(name string, values []string) { header[name] = values })
	eachTrailer(said.Trailer, func(name string, _ []string) { header.Add("Trailer", name) })
	// A 304 may say the length of the answer that it stands for (RFC 9110, 8.6); clients by HTTP/2 take that for a body which is missing.
	hasBody := said.StatusCode != http.StatusNoContent && said.StatusCode != http.StatusNotModified
	if hasBody && said.ContentLength >= 0 {
		header.Set("Content-Length", fmt.Sprint(said.ContentLength))
	}
}

// setTrailers says what came behind the body, announced or not.
func setTrailers(header http.Header, said *http.Response) {
	eachTrailer(said.Trailer, func(name string, values []string) {
		for _, value := range values {
			header.Add(http.TrailerPrefix+name, value)
		}
	})
}

// IsSpeakable: a request over HTTP/2 may hold what an HTTP/1.1 head cannot, or name a second host in a field.
func IsSpeakable(r *http.Request) bool {
	for _, host := range r.Header["Host"] {
		if host != r.Host {
			return false
		}
	}
	isPath := r.RequestURI != "" && !strings.ContainsFunc(r.RequestURI, func(c rune) bool { return c <= ' ' || c == 0x7f })
	// A method is a token, as the name of a field is.
	return isPath && httpguts.ValidHeaderFieldName(r.Method) && httpguts.ValidHostHeader(r.Host)
}
