package netslot

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// names returns names of namespaces that nobody else has; they are gone after the test.
func names(t *testing.T, count int) []string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	list := make([]string, count)
	for i := range list {
		list[i] = fmt.Sprintf("aenetslot%d-%d", os.Getpid(), i)
	}
	t.Cleanup(func() { apply(t, Plan{Remove: Removal{Namespaces: list}}) })
	return list
}

func apply(t *testing.T, plan Plan) {
	t.Helper()
	if err := Apply(plan); err != nil {
		t.Fatal(err)
	}
}

func parse(t *testing.T, text string) Plan {
	t.Helper()
	plan, err := ParsePlan([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func inside(t *testing.T, namespace string, work func() error) {
	t.Helper()
	if err := apart(func(s *spaces) error { return s.within(namespace, work) }); err != nil {
		t.Fatal(err)
	}
}

func said(t *testing.T, namespace string, input string, command ...string) string {
	t.Helper()
	var output []byte
	inside(t, namespace, func() (err error) {
		run := exec.Command(command[0], command[1:]...)
		run.Stdin = strings.NewReader(input)
		output, err = run.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, output)
		}
		return err
	})
	return string(output)
}

func compile(t *testing.T, text string) []byte {
	t.Helper()
	tables, err := Compile([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// twoEnds are two namespaces with a pair of links between them.
func twoEnds(t *testing.T) (a, b string) {
	list := names(t, 2)
	plan := strings.NewReplacer(`"A"`, strconv.Quote(list[0]), `"B"`, strconv.Quote(list[1])).Replace(`{
		"namespaces": ["A", "B"],
		"forwarding": ["B"],
		"pairs": [{"mtuBytes": 1400, "ends": [
			{"namespace": "A", "name": "one0", "mac": "02:ae:00:00:00:01"},
			{"namespace": "B", "name": "two0", "mac": "02:ae:00:00:00:02"}
		]}],
		"interfaces": [
			{"namespace": "A", "name": "lo", "up": true},
			{"namespace": "A", "name": "one0", "up": true, "addresses": [{"prefix": "192.0.2.1/30"}],
			 "neighbours": [{"address": "192.0.2.2", "mac": "02:ae:00:00:00:02"}],
			 "routes": [{"to": "0.0.0.0/0", "via": "192.0.2.2"}]},
			{"namespace": "B", "name": "lo", "addresses": [{"prefix": "192.0.2.9/32", "link": true}],
			 "routes": [{"to": "198.51.100.0/24", "unreachable": true}]},
			{"namespace": "B", "name": "two0", "up": true, "addresses": [{"prefix": "192.0.2.2/30"}],
			 "neighbours": [{"address": "192.0.2.1", "mac": "02:ae:00:00:00:01"}],
			 "routes": [{"to": "192.0.2.64/26", "source": "192.0.2.9"}]}
		]
	}`)
	whole := parse(t, plan)
	apply(t, whole)
	// What may be there already is set again.
	apply(t, Plan{Forwarding: whole.Forwarding, Interfaces: whole.Interfaces})
	return list[0], list[1]
}

func TestAPlanMakesNamespacesThatReachEachOther(t *testing.T) {
	a, b := twoEnds(t)
	var server net.Listener
	inside(t, b, func() (err error) {
		server, err = net.Listen("tcp4", "192.0.2.2:0")
		return err
	})
	defer server.Close()
	go func() {
		if conn, err := server.Accept(); err == nil {
			fmt.Fprint(conn, conn.RemoteAddr().(*net.TCPAddr).IP)
			conn.Close()
		}
	}()
	inside(t, a, func() error {
		conn, err := net.DialTimeout("tcp4", server.Addr().String(), 5*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		heard, err := io.ReadAll(conn)
		if string(heard) != "192.0.2.1" {
			t.Errorf("heard %q", heard)
		}
		return err
	})
}

func TestAPlanIsCarriedOutToTheLetter(t *testing.T) {
	a, b := twoEnds(t)
	for _, want := range []struct {
		namespace, command string
		lines              []string
	}{
		{a, "ip -o link", []string{"mtu 1400", "02:ae:00:00:00:01", "LOWER_UP"}},
		{a, "ip -6 -o addr", []string{"::1/128"}},
		{a, "ip neigh", []string{"192.0.2.2 dev one0 lladdr 02:ae:00:00:00:02 PERMANENT"}},
		{a, "ip route", []string{"default via 192.0.2.2 dev one0 onlink"}},
		{b, "ip addr show lo", []string{"inet 192.0.2.9/32 scope link lo", "state DOWN"}},
		{b, "ip route", []string{"unreachable 198.51.100.0/24", "192.0.2.64/26 dev two0 scope link src 192.0.2.9"}},
		{b, "cat /proc/sys/net/ipv4/ip_forward", []string{"1"}},
	} {
		output := said(t, want.namespace, "", strings.Fields(want.command)...)
		for _, line := range want.lines {
			if !strings.Contains(output, line) {
				t.Errorf("%s: no %q in:\n%s", want.command, line, output)
			}
		}
	}
	if output := said(t, a, "", "ip", "-6", "-o", "addr", "show", "one0"); output != "" {
		t.Errorf("the link has an IPv6 address: %s", output)
	}
}

func TestWhatIsRemovedMayBeGoneAlready(t *testing.T) {
	list := names(t, 2)
	link := fmt.Sprintf("aens%d", os.Getpid())
	plan := parse(t, fmt.Sprintf(`{"namespaces": [%q], "pairs": [{"mtuBytes": 1500, "ends": [
		{"namespace": "", "name": %q, "mac": "02:ae:00:00:00:01"}, {"namespace": %q, "name": "b0", "mac": "02:ae:00:00:00:02"}]}]}`,
		list[0], link, list[0]))
	apply(t, plan)
	// The file of a namespace that was half made.
	half := filepath.Join(namespaceDir, list[1])
	if err := os.WriteFile(half, nil, 0); err != nil {
		t.Fatal(err)
	}
	shared := Interface{Namespace: list[0], Name: "lo", Addresses: []Address{{Prefix: netip.MustParsePrefix("192.0.2.9/32")}},
		Routes: []Route{{To: netip.MustParsePrefix("198.51.100.0/24"), Unreachable: true}}}
	apply(t, Plan{Interfaces: []Interface{shared}})
	for range 2 {
		apply(t, Plan{Remove: Removal{Interfaces: []Interface{shared}}})
	}
	if output := said(t, list[0], "", "ip", "route"); output != "" {
		t.Errorf("routes are left: %s", output)
	}
	for range 2 {
		apply(t, Plan{Remove: Removal{Links: []string{link}, Namespaces: list}})
	}
	for _, path := range []string{half, filepath.Join(namespaceDir, list[0]), "/sys/class/net/" + link} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// language has what rules of slots are made of, and what of it the kernel says differently from how it is told.
const language = `
table inet first {
	set denied {
		type ipv4_addr
		flags interval
		elements = { 0.0.0.0/8, 10.0.0.0/8, 192.0.0.0/24, 192.0.2.0/24, 224.0.0.0/4, 240.0.0.0/4 }
	}
	set ports {
		type inet_service
		elements = { 80, 443 }
	}
	map leads { type inet_service : verdict; elements = { 22 : goto refuse } }
	chain refuse {
		meta l4proto tcp reject with tcp reset
		reject with icmpx admin-prohibited
	}
	chain in {
		type nat hook prerouting priority dstnat; policy accept;
		iifname "a0" fib daddr . iif type local meta l4proto { tcp, udp } dnat ip to 192.0.2.1
	}
	chain out {
		type nat hook postrouting priority srcnat; policy accept;
		oifname "a*" masquerade
	}
	chain leave {
		ct status confirmed accept
		tcp flags & (fin | syn | rst | ack) != syn goto refuse
		limit rate over 128/second burst 4096 packets drop
		ct count over 4096 goto refuse
		tcp dport @ports accept comment "known"
		tcp dport vmap @leads
	}
	chain through {
		type filter hook forward priority filter; policy drop;
		ct state { established, related } accept
		ip daddr @denied goto refuse
		goto leave
	}
}
table arp second {
	chain genuine {
		type filter hook input priority filter; policy accept;
		iifname "b0" arp saddr ip != 192.0.2.1 drop
	}
}
`

func TestACopyOfRulesIsWhatNftMakes(t *testing.T) {
	list := names(t, 2)
	many := make([]string, 3*elementsAtOnce)
	for i := range many {
		many[i] = fmt.Sprintf("100.%d.%d.0/24", i/256, i%256*2%256)
	}
	text := language + fmt.Sprintf("table ip third { set many { type ipv4_addr; flags interval; auto-merge; elements = { %s }; }; }\n",
		strings.Join(many, ", "))
	apply(t, Plan{Namespaces: list, Rules: []Rules{{Namespaces: []string{list[0]}, Tables: compile(t, text)}}})
	said(t, list[1], text, "nft", "-f", "-")
	copied, made := said(t, list[0], "", "nft", "list", "ruleset"), said(t, list[1], "", "nft", "list", "ruleset")
	if copied != made || !strings.Contains(copied, "goto refuse") {
		t.Errorf("the copy:\n%s\nby nft:\n%s", copied, made)
	}
}

func TestRulesReplaceTablesOfTheirNamesAlone(t *testing.T) {
	list := names(t, 1)
	one := compile(t, "table inet a { chain c { tcp dport { 1, 2 } drop; }; }\n")
	apply(t, Plan{Namespaces: list, Rules: []Rules{{Namespaces: []string{list[0]}, Tables: one}}})
	said(t, list[0], "table ip others { chain c { accept; }; }\n", "nft", "-f", "-")
	other := compile(t, "table inet a { set s { type ipv4_addr; elements = { 192.0.2.1 }; }; chain d { ip saddr @s drop; }; }\n")
	for range 2 {
		apply(t, Plan{Rules: []Rules{{Namespaces: []string{list[0]}, Tables: other}}})
	}
	output := said(t, list[0], "", "nft", "list", "ruleset")
	if strings.Contains(output, "dport") || strings.Count(output, "ip saddr @s drop") != 1 || !strings.Contains(output, "table ip others") {
		t.Errorf("after the replacement:\n%s", output)
	}
}

func TestRulesAreInPlaceBeforeThereIsALink(t *testing.T) {
	list := names(t, 1)
	plan := Plan{Namespaces: list, Rules: []Rules{{Namespaces: list, Tables: compile(t, "table inet a { chain c { drop; }; }\n")}},
		Pairs: []Pair{{MTUBytes: 1, Ends: [2]End{{Namespace: list[0], Name: "a0"}, {Namespace: list[0], Name: "b0"}}}}}
	if err := Apply(plan); err == nil || !strings.Contains(err.Error(), "make the links") {
		t.Fatalf("links of 1 byte: %v", err)
	}
	if output := said(t, list[0], "", "nft", "list", "ruleset"); !strings.Contains(output, "drop") {
		t.Errorf("rules at the first link: %q", output)
	}
}

func TestErrorsSayWhatAndWhere(t *testing.T) {
	list := names(t, 1)
	apply(t, Plan{Namespaces: list})
	here := list[0]
	tables := compile(t, "table inet a { }\n")
	for want, plan := range map[string]Plan{
		"make namespace " + here:                 {Namespaces: list},
		`"../x" is no name`:                      {Namespaces: []string{"../x"}},
		"load the rules of no-such: open":        {Rules: []Rules{{Namespaces: []string{"no-such"}, Tables: tables}}},
		"load the rules of " + here + ": compi":  {Rules: []Rules{{Namespaces: []string{here}, Tables: tables[:len(tables)-1]}}},
		"link no0 in " + here + ": no such":      {Interfaces: []Interface{{Namespace: here, Name: "no0"}}},
		"in " + here + ": add a route: ":         {Interfaces: []Interface{{Namespace: here, Name: "lo", Routes: []Route{{To: netip.MustParsePrefix("192.0.2.0/24")}}}}},
		"make the links a0 (" + here + ") and b": {Pairs: []Pair{{MTUBytes: 1, Ends: [2]End{{Namespace: here, Name: "a0"}, {Namespace: here, Name: "b0"}}}}},
	} {
		if err := Apply(plan); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got: %v", want, err)
		}
	}
	for want, text := range map[string]string{
		"nft: exit status 1":           "table inet a {\n",
		"objects with a name of their": "table inet a { counter c { }; }\n",
		"make a copy of the rules":     "table inet a { chain c { tcp flags syn tcp option maxseg size set rt mtu; }; }\n",
	} {
		if _, err := Compile([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got: %v", want, err)
		}
	}
	if _, err := ParsePlan([]byte(`{"namespcaes": []}`)); err == nil || !strings.Contains(err.Error(), "namespcaes") {
		t.Errorf("an unknown field: %v", err)
	}
}
