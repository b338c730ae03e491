package httpapi

import (
	"strings"
	"testing"
)

func TestFreezingTheDiskIsForTheNode(t *testing.T) {
	b := newBench(t)
	b.init(`{"accessToken":"secret","initKey":"k1","sandboxId":"i1"}`)
	for _, path := range []string{"/fsfreeze", "/fsthaw"} {
		for _, headers := range [][]string{nil, {"X-Access-Token", "secret"}, {"X-Init-Key", "k0"}} {
			if got := b.do("POST", path, strings.NewReader(""), headers...); got.status != 401 {
				t.Errorf("%s with %v: %+v", path, headers, got)
			}
		}
		if got := b.do("GET", path, nil, "X-Init-Key", "k1"); got.status != 405 {
			t.Errorf("GET %s: %+v", path, got)
		}
		// The machine of this test has no disk of its own.
		if got := b.do("POST", path, strings.NewReader(""), "X-Init-Key", "k1"); got.status != 501 {
			t.Errorf("%s: %+v", path, got)
		}
	}
}
