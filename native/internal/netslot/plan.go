// Package netslot makes, changes and removes what network slots are made of, by netlink: namespaces, pairs of links, addresses,
// neighbours, routes, and tables of nftables that were compiled before. It decides nothing.
package netslot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
)

// Plan is carried out in the order of its fields. A namespace is named as under /run/netns; "" is the one netslot was started in.
type Plan struct {
	Remove Removal `json:"remove"`
	// Namespaces are made; an error when one is there.
	Namespaces []string `json:"namespaces"`
	Rules      []Rules  `json:"rules"`
	// Forwarding names the namespaces that pass IPv4 packets on.
	Forwarding []string `json:"forwarding"`
	// Pairs are made; an error when a name is taken.
	Pairs []Pair `json:"pairs"`
	// Interfaces may have been set up before.
	Interfaces []Interface `json:"interfaces"`
}

// Removal is of what may have gone already. Removing one link of a pair removes both.
type Removal struct {
	Links []string `json:"links"`
	// Interfaces lose the addresses and routes that are named.
	Interfaces []Interface `json:"interfaces"`
	Namespaces []string    `json:"namespaces"`
}

// Rules replace tables, in each namespace all in one step: there is no moment without rules, and flows already accepted go on.
type Rules struct {
	Namespaces []string `json:"namespaces"`
	// Tables are what Compile returned, in base64.
	Tables []byte `json:"tables"`
}

// Pair is two links, what goes into one of which comes out of the other. They are down.
type Pair struct {
	MTUBytes uint32 `json:"mtuBytes"`
	Ends     [2]End `json:"ends"`
}

// End is one link of a pair.
type End struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	MAC       MAC    `json:"mac"`
}

// Interface is a link and what belongs to it.
type Interface struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Up brings it up, without an IPv6 address (loopback keeps its own). When not set it stays as it is.
	Up         bool        `json:"up"`
	Addresses  []Address   `json:"addresses"`
	Neighbours []Neighbour `json:"neighbours"`
	Routes     []Route     `json:"routes"`
}

// Address is an IPv4 address with the length of its prefix.
type Address struct {
	Prefix netip.Prefix `json:"prefix"`
	// Link: it is never picked as the source of what goes elsewhere.
	Link bool `json:"link"`
}

// Neighbour is where an address is found without asking.
type Neighbour struct {
	Address netip.Addr `json:"address"`
	MAC     MAC        `json:"mac"`
}

// Route is one of the main table.
type Route struct {
	To netip.Prefix `json:"to"`
	// Via is a gateway, which need not lie in a network of the link.
	Via    *netip.Addr `json:"via"`
	Source *netip.Addr `json:"source"`
	// Unreachable: packets are refused. It belongs to no link.
	Unreachable bool `json:"unreachable"`
}

// MAC is a link-layer address.
type MAC net.HardwareAddr

// UnmarshalText reads 02:ae:00:00:00:01.
func (m *MAC) UnmarshalText(text []byte) error {
	mac, err := net.ParseMAC(string(text))
	*m = MAC(mac)
	return err
}

// ParsePlan reads a plan.
func ParsePlan(text []byte) (Plan, error) {
	var plan Plan
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&plan); err != nil {
		return Plan{}, fmt.Errorf("read the plan: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Plan{}, errors.New("read the plan: more follows it")
	}
	return plan, nil
}
