package process

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	processpb "aenv/native/gen/process"
)

// More is typed than a terminal takes before somebody reads: that is what Linux lets the keyboard throw away.
func TestSignalKeysThrowUnreadInputAway(t *testing.T) {
	asItIs := func(*unix.Termios) {}
	for name, c := range map[string]struct {
		set         func(*unix.Termios)
		first, keys string
		want        string
		thrownAway  bool
	}{
		"interrupt":              {asItIs, "", "\x03", "\x03", true},
		"quit":                   {asItIs, "", "\x1c", "\x1c", true},
		"suspend":                {asItIs, "", "\x1a", "\x1a", true},
		"among text":             {asItIs, "", "half\x03more\n\x1alast\n", "\x03\x1alast\n", true},
		"no keys":                {asItIs, "", "", "", false},
		"text":                   {asItIs, "", "text ü\r\n\t\x1b[A\x7f\x00", "text ü\r\n\t\x1b[A\x7f\x00", false},
		"quoted":                 {asItIs, "", "\x16\x03", "\x16\x03", false},
		"quoted before":          {asItIs, "\x16", "\x03", "\x03", false},
		"after a quoted one":     {asItIs, "\x16x", "\x03", "\x03", true},
		"nothing signals":        {func(mode *unix.Termios) { mode.Lflag &^= unix.ISIG }, "", "\x03\x1a\x1c", "\x03\x1a\x1c", false},
		"nothing throws away":    {func(mode *unix.Termios) { mode.Lflag |= unix.NOFLSH }, "", "a\x03", "a\x03", false},
		"nothing quotes":         {func(mode *unix.Termios) { mode.Lflag &^= unix.IEXTEN }, "", "\x16\x03", "\x03", true},
		"no key interrupts":      {func(mode *unix.Termios) { mode.Cc[unix.VINTR] = 0 }, "", "a\x03\x00", "a\x03\x00", false},
		"another key interrupts": {func(mode *unix.Termios) { mode.Cc[unix.VINTR] = 0x18 }, "", "a\x03b\x18", "\x18", true},
	} {
		t.Run(name, func(t *testing.T) {
			controller, side, err := openTerminal(unix.Winsize{Col: 80, Row: 24}, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer controller.Close()
			defer unix.Close(side)
			mode, err := unix.IoctlGetTermios(side, unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			c.set(mode)
			if err := unix.IoctlSetTermios(side, unix.TCSETS, mode); err != nil {
				t.Fatal(err)
			}
			ahead := strings.Repeat("typed ahead\n", 1000)
			if _, err := controller.WriteString(ahead); err != nil {
				t.Fatal(err)
			}
			k := keyboard{controller: controller}
			k.press([]byte(c.first))
			if got := string(k.press([]byte(c.keys))); got != c.want {
				t.Errorf("%q is written, not %q", got, c.want)
			}
			if _, err := controller.WriteString("end\n"); err != nil {
				t.Fatal(err)
			}
			read := ""
			for !strings.HasSuffix(read, "end\n") {
				piece := make([]byte, len(ahead))
				n, err := unix.Read(side, piece)
				if err != nil {
					t.Fatal(err)
				}
				read += string(piece[:n])
			}
			if thrownAway := len(read) < len(ahead); thrownAway != c.thrownAway {
				t.Errorf("%d bytes of %d are read", len(read), len(ahead))
			}
		})
	}
}

// terminal starts a script on a terminal; show reads on until that has shown a text.
func (b *bench) terminal(script string) (pid uint32, show func(text string) string) {
	b.t.Helper()
	msg := shell(script)
	msg.Stdin, msg.Pty = nil, &processpb.PTY{}
	ctx, leave := context.WithTimeout(context.Background(), 20*time.Second)
	b.t.Cleanup(leave)
	got, in := b.begin(ctx, msg)
	return got.pid, func(text string) string {
		b.t.Helper()
		for !strings.Contains(got.tt.String(), text) {
			if !in.Receive() {
				b.t.Fatalf("%q is never shown: %q, %v", text, got.tt.String(), in.Err())
			}
			if err := got.add(in.Msg().GetEvent()); err != nil {
				b.t.Fatal(err)
			}
		}
		return got.tt.String()
	}
}

// PROC-17: a line typed ahead does not keep the keys from ending, or stopping, what runs.
func TestPROC17SignalKeysBehindALine(t *testing.T) {
	for _, key := range []string{"\x03", "\x1c", "\x1a"} {
		b := newBench(t)
		pid, show := b.terminal("exec sh -i")
		press := func(keys string) {
			t.Helper()
			if err := b.keys(pid, keys); err != nil {
				t.Fatal(err)
			}
		}
		// The program says so itself: before it the shell had the terminal.
		press("sh -c 'echo runs-$((40 + 2)); exec sleep 1000'\r")
		show("runs-42")
		press("\r")
		press("echo unread\r")
		press(key)
		press("echo next-$((40 + 2))\r")
		if text := show("next-42"); strings.Count(text, "unread") > 1 {
			t.Errorf("after %q the input that was typed before is read: %q", key, text)
		}
		if err := b.kill(pid); err != nil {
			t.Fatal(err)
		}
	}
}

func TestARawTerminalGetsEveryByte(t *testing.T) {
	b := newBench(t)
	pid, show := b.terminal("stty raw -echo; echo ready; head -c 65536 | od -An -v -tu1; echo end")
	show("ready")
	want := []string{}
	var all []byte
	for i := range 256 {
		all = append(all, byte(i))
		want = append(want, strconv.Itoa(i))
	}
	if err := b.keys(pid, strings.Repeat(string(all), 256)); err != nil {
		t.Fatal(err)
	}
	text := show("end")
	got := strings.Fields(text[strings.Index(text, "ready")+5 : strings.LastIndex(text, "end")])
	if !slices.Equal(got, slices.Repeat(want, 256)) {
		t.Errorf("%d bytes arrived, not as they were sent", len(got))
	}
}
