package forward

import (
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// eachTrailer calls with every trailer that may stand behind a body. One that frames or routes a message, or speaks of its
// connection, would be taken at its word by some: Node ends a connection for a trailer `Connection: close`.
func eachTrailer(trailer http.Header, each func(name string, values []string)) {
	for name, values := range trailer {
		canonical := http.CanonicalHeaderKey(name)
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidTrailerHeader(canonical) || hopByHop[canonical] {
			continue
		}
		var valid []string
		for _, value := range values {
			if httpguts.ValidHeaderFieldValue(value) {
				valid = append(valid, value)
			}
		}
		each(canonical, valid)
	}
}

// eachTrailer is the same for what goes there: a trailer is no way around what is dropped from the head.
func (to To) eachTrailer(trailer http.Header, each func(name string, values []string)) {
	if to.NoTrailers {
		return
	}
	eachTrailer(trailer, func(name string, values []string) {
		if to.Drop == nil || !to.Drop(name, values) {
			each(name, values)
		}
	})
}

// lastChunk ends a chunked body. Precondition: the body has been read to its end.
func lastChunk(to To, trailer http.Header) []byte {
	var text strings.Builder
	text.WriteString("0\r\n")
	to.eachTrailer(trailer, func(name string, values []string) {
		for _, value := range values {
			text.WriteString(name + ": " + value + "\r\n")
		}
	})
	text.WriteString("\r\n")
	return []byte(text.String())
}
