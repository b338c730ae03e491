package answer

import (
	"net/http"
	"strings"
	"testing"
)

func TestTextsAreE2Bs(t *testing.T) {
	for want, said := range map[string]*Answer{
		`{"sandboxId":"ia","message":"The sandbox was not found","code":502}`:                             NotFound("ia"),
		`{"sandboxId":"ia","message":"The sandbox is running but port is not open","port":80,"code":502}`: PortClosed("ia", 80),
		`{"path":"/init","message":"/init is reserved for the E2B control plane","code":404}`:             Reserved("/init?x=1"),
		`{"sandboxId":"ia","message":"sandbox ia is paused","code":410}`:                                  Paused("ia"),
		`{"message":"<&> 'x'","code":400}`:                                                                Invalid("<&> 'x'"),
	} {
		header := http.Header{}
		if text := string(said.Header(header, false)); text != want {
			t.Errorf("%s\nnot %s", text, want)
		}
		if header.Get("Content-Type") != "application/json; charset=utf-8" {
			t.Error(header)
		}
	}
}

func TestPagesAreForPeople(t *testing.T) {
	for want, said := range map[string]*Answer{
		"Sandbox Not Found":             NotFound("ia"),
		"no service running on port 80": PortClosed("ia", 80),
		"Missing Traffic Access Token":  TrafficTokenMissing("ia"),
		"Invalid Traffic Access Token":  TrafficTokenWrong("ia"),
		"&lt;script&gt;":                Invalid("<script>"),
	} {
		header := http.Header{}
		page := string(said.Header(header, true))
		if !strings.HasPrefix(page, "<html") || !strings.HasSuffix(page, "</html>") || !strings.Contains(page, want) {
			t.Error(page)
		}
		if header.Get("Content-Type") != "text/html; charset=utf-8" {
			t.Error(header)
		}
	}
	browser := "Mozilla/5.0 (X11)"
	for _, c := range []struct {
		agent, mode, accept string
		want                bool
	}{
		{browser, "", "text/html,*/*", true}, {browser, "navigate", "", true}, {browser, "cors", "", false},
		{browser, "", "application/json", false}, {"node", "", "text/html", false}, {"curl/8", "", "", false},
	} {
		header := http.Header{"User-Agent": {c.agent}, "Sec-Fetch-Mode": {c.mode}, "Accept": {c.accept}}
		if WantsHTML(header) != c.want {
			t.Errorf("%+v", c)
		}
	}
}
