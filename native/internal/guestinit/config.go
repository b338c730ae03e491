package guestinit

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// configKey precedes the configuration on the kernel's command line: JSON in URL-safe base64, without blanks therefore.
const configKey = "aenv.config="

// minMTUBytes is the smallest that IPv4 allows.
const minMTUBytes = 68

// Config is what the host says to a machine that boots.
type Config struct {
	Hostname string `json:"hostname"`
	// Network is nil for a machine without any but its loopback.
	Network *Network `json:"network"`
	// MaxTasks is how many processes and threads each user but root may have.
	MaxTasks uint64 `json:"maxTasks"`
	// OpenFiles is how many files a process may have open.
	OpenFiles uint64 `json:"openFiles"`
	// ShmBytes is the size of /dev/shm.
	ShmBytes uint64 `json:"shmBytes"`
	// Init is the command line of the image's own init. Empty: the agent is pid 1.
	Init []string `json:"init"`
}

// Network is the one connection of a machine: to a gateway, alone with it on the line.
type Network struct {
	Device  string       `json:"device"`
	Address netip.Prefix `json:"address"`
	Gateway netip.Addr   `json:"gateway"`
	// GatewayMAC is fixed rather than asked for, so that a restored machine need not ask either.
	GatewayMAC macAddress `json:"gatewayMac"`
	MTUBytes   int        `json:"mtuBytes"`
}

// macAddress is six pairs of hexadecimal digits with colons between, in JSON.
type macAddress [6]byte

func (m *macAddress) UnmarshalText(text []byte) error {
	n, err := fmt.Sscanf(string(text), "%02x:%02x:%02x:%02x:%02x:%02x", &m[0], &m[1], &m[2], &m[3], &m[4], &m[5])
	if err != nil || n != len(m) || len(text) != len("00:00:00:00:00:00") {
		return fmt.Errorf("%q is not a MAC address such as 02:ae:00:00:00:02", text)
	}
	return nil
}

// readConfig finds and checks the configuration on the kernel's command line.
func readConfig(commandLine string) (Config, error) {
	var config Config
	encoded := ""
	for field := range strings.FieldsSeq(commandLine) {
		if value, ok := strings.CutPrefix(field, configKey); ok {
			encoded = value
		}
	}
	if encoded == "" {
		return config, errors.New(configKey + "… is missing")
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(encoded, "="))
	if err != nil {
		return config, fmt.Errorf("%s: %w", configKey, err)
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return config, fmt.Errorf("%s%s: %w", configKey, text, err)
	}
	if err := config.check(); err != nil {
		return config, fmt.Errorf("%s%s: %w", configKey, text, err)
	}
	return config, nil
}

func (c *Config) check() error {
	switch {
	case c.Hostname == "" || len(c.Hostname) > 64:
		return errors.New("hostname: 1 to 64 bytes are needed")
	case c.MaxTasks == 0:
		return errors.New("maxTasks: at least 1 is needed")
	case c.OpenFiles == 0:
		return errors.New("openFiles: at least 1 is needed")
	case c.ShmBytes == 0:
		return errors.New("shmBytes: at least 1 is needed")
	case len(c.Init) > 0 && !strings.HasPrefix(c.Init[0], "/"):
		return fmt.Errorf("init: %q is not an absolute path", c.Init[0])
	case c.Network != nil:
		return c.Network.check()
	}
	return nil
}

func (n *Network) check() error {
	switch {
	case n.Device == "" || len(n.Device) >= unix.IFNAMSIZ:
		return fmt.Errorf("network.device: 1 to %d bytes are needed", unix.IFNAMSIZ-1)
	case !n.Address.IsValid() || !n.Address.Addr().Is4():
		return errors.New("network.address: an IPv4 address with prefix length is needed")
	case !n.Gateway.Is4() || !n.Address.Contains(n.Gateway):
		return fmt.Errorf("network.gateway: an address in %s is needed", n.Address.Masked())
	case n.GatewayMAC == macAddress{}:
		return errors.New("network.gatewayMac: a MAC address is needed")
	case n.MTUBytes < minMTUBytes || n.MTUBytes > 65535:
		return fmt.Errorf("network.mtuBytes: a number from %d to 65535 is needed", minMTUBytes)
	}
	return nil
}
