package guestinit

import (
	"encoding/base64"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

const network = `{"device":"eth0","address":"169.254.0.21/30","gateway":"169.254.0.22","gatewayMac":"02:ae:00:00:00:02","mtuBytes":1500}`

func commandLine(config string) string {
	return "console=ttyS0 quiet aenv.config=" + base64.RawURLEncoding.EncodeToString([]byte(config)) + " reboot=k\n"
}

func TestTheConfigurationIsReadFromTheKernelsCommandLine(t *testing.T) {
	text := `{"hostname":"box?>","network":` + network + `,"maxTasks":512,"openFiles":1024,"shmBytes":4096,"init":["/sbin/init","x"]}`
	got, err := readConfig(commandLine(text))
	want := Config{
		Hostname: "box?>", MaxTasks: 512, OpenFiles: 1024, ShmBytes: 4096, Init: []string{"/sbin/init", "x"},
		Network: &Network{
			Device: "eth0", Address: netip.MustParsePrefix("169.254.0.21/30"), Gateway: netip.MustParseAddr("169.254.0.22"),
			GatewayMAC: macAddress{2, 0xae, 0, 0, 0, 2}, MTUBytes: 1500,
		},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestABadConfigurationIsRefusedWithTheFieldsName(t *testing.T) {
	good := `{"hostname":"box","network":` + network + `,"maxTasks":512,"openFiles":1024,"shmBytes":4096}`
	if _, err := readConfig(commandLine(good)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []struct{ old, new, reason string }{
		{`"hostname":"box"`, `"hostname":""`, "hostname: 1 to 64 bytes"},
		{`512`, `0`, "maxTasks: at least 1"},
		{`512`, `-1`, "maxTasks"},
		{`1024`, `0`, "openFiles: at least 1"},
		{`4096`, `0`, "shmBytes: at least 1"},
		{`4096`, `4096,"init":["sbin/init"]`, `init: "sbin/init" is not an absolute path`},
		{`"eth0"`, `"a-name-of-sixteen"`, "network.device: 1 to 15 bytes"},
		{`"169.254.0.21/30"`, `"169.254.0.21"`, "address"},
		{`"169.254.0.21/30"`, `"fd00::1/64"`, "network.address: an IPv4 address"},
		{`"169.254.0.22"`, `"169.254.0.24"`, "network.gateway: an address in 169.254.0.20/30"},
		{`02:ae:00:00:00:02`, `02:ae:00:00:00`, `"02:ae:00:00:00" is not a MAC address`},
		{`,"gatewayMac":"02:ae:00:00:00:02"`, ``, "network.gatewayMac: a MAC address is needed"},
		{`1500`, `67`, "network.mtuBytes: a number from 68"},
		{good, `[`, "JSON"},
	} {
		_, err := readConfig(commandLine(strings.Replace(good, bad.old, bad.new, 1)))
		if err == nil || !strings.Contains(err.Error(), bad.reason) {
			t.Errorf("%s instead of %s: %v", bad.new, bad.old, err)
		}
	}
	for line, reason := range map[string]string{"quiet": "aenv.config=… is missing", "aenv.config=*": "aenv.config=: illegal base64"} {
		if _, err := readConfig(line); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", line, err)
		}
	}
}
