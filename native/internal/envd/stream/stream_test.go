package stream

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// answered counts how often what was written is sent on.
type answered struct {
	*httptest.ResponseRecorder
	flushes int
}

func (a *answered) Flush() { a.flushes++ }

func TestTheLastMessageGoesWithTheEnd(t *testing.T) {
	out := &answered{ResponseRecorder: httptest.NewRecorder()}
	request := httptest.NewRequest(http.MethodPost, "/", nil)
	request.Header.Set("Content-Type", "application/connect+json")
	say := func(w http.ResponseWriter, message string) {
		if _, err := w.Write([]byte(message)); err != nil {
			t.Error(err)
		}
		w.(http.Flusher).Flush()
	}
	Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		say(w, "first, ")
		say(w, "second, ")
		if out.flushes != 2 {
			t.Errorf("two messages were sent on %d times", out.flushes)
		}
		Last(r.Context())
		say(w, "last")
		say(w, ", and the protocol's own")
		if out.flushes != 2 {
			t.Error("what ends the answer was sent before its end")
		}
	})).ServeHTTP(out, request)
	if got := out.Body.String(); got != "first, second, last, and the protocol's own" {
		t.Errorf("%q was written", got)
	}
}
