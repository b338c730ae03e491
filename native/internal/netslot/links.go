package netslot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Of <linux/veth.h> and <linux/if_link.h>, which the unix package lacks.
const (
	vethInfoPeer    = 1 // VETH_INFO_PEER
	addrGenModeNone = 1 // IN6_ADDR_GEN_MODE_NONE
)

const (
	change  = unix.NLM_F_REQUEST | unix.NLM_F_ACK
	makeNew = change | unix.NLM_F_CREATE | unix.NLM_F_EXCL
	replace = change | unix.NLM_F_CREATE | unix.NLM_F_REPLACE
)

// makePair makes both links where they belong: neither is ever in another namespace.
func (s *spaces) makePair(pair Pair) error {
	one, other := pair.Ends[0], pair.Ends[1]
	peerSpace, err := s.space(other.Namespace)
	if err != nil {
		return err
	}
	request := describe(one, pair.MTUBytes)
	request.nested(unix.IFLA_LINKINFO, func(info *attributes) {
		info.text(unix.IFLA_INFO_KIND, "veth")
		info.nested(unix.IFLA_INFO_DATA, func(data *attributes) {
			peer := describe(other, pair.MTUBytes)
			peer.uint32(unix.IFLA_NET_NS_FD, uint32(peerSpace.file.Fd()))
			data.bytes(vethInfoPeer, slices.Concat(linkHeader(0, 0), peer))
		})
	})
	_, err = s.ask(one.Namespace, message{unix.RTM_NEWLINK, makeNew, slices.Concat(linkHeader(0, 0), request)})
	return err
}

func describe(end End, mtuBytes uint32) (link attributes) {
	link.text(unix.IFLA_IFNAME, end.Name)
	link.bytes(unix.IFLA_ADDRESS, end.MAC)
	link.uint32(unix.IFLA_MTU, mtuBytes)
	return link
}

// removeLink removes a link of the namespace netslot was started in, if it is there.
func (s *spaces) removeLink(name string) error {
	_, err := s.ask("", message{unix.RTM_DELLINK, change, linkNamed(name)})
	return ignoring(err, unix.ENODEV)
}

// setUp brings a link up and gives it what belongs to it.
func (s *spaces) setUp(set Interface) error {
	index, err := s.index(set)
	if err != nil {
		return err
	}
	requests := make([]message, 0, 8)
	if set.Up {
		// In two steps: the kernel makes the address when the link comes up. One that has no IPv6, or too small an MTU for it, has none
		// to make.
		_, err := s.ask(set.Namespace, message{unix.RTM_NEWLINK, change, linkWithoutIPv6Address(index)})
		if err := ignoring(err, unix.EAFNOSUPPORT); err != nil {
			return fmt.Errorf("%s: %w", purpose(unix.RTM_NEWLINK), err)
		}
		requests = append(requests, message{unix.RTM_NEWLINK, change, linkHeader(index, unix.IFF_UP)})
	}
	for _, address := range set.Addresses {
		requests = append(requests, message{unix.RTM_NEWADDR, replace, address.encode(index)})
	}
	for _, neighbour := range set.Neighbours {
		requests = append(requests, message{unix.RTM_NEWNEIGH, replace, neighbour.encode(index)})
	}
	for _, route := range set.Routes {
		requests = append(requests, message{unix.RTM_NEWROUTE, replace, route.encode(index)})
	}
	for _, request := range requests {
		if _, err := s.ask(set.Namespace, request); err != nil {
			return fmt.Errorf("%s: %w", purpose(request.kind), err)
		}
	}
	return nil
}

// strip takes addresses and routes from a link, if they are there.
func (s *spaces) strip(set Interface) error {
	index, err := s.index(set)
	if err != nil {
		return err
	}
	remove := func(kind uint16, data []byte, gone error) error {
		_, err := s.ask(set.Namespace, message{kind, change, data})
		if err = ignoring(err, gone); err != nil {
			return fmt.Errorf("%s: %w", purpose(kind), err)
		}
		return nil
	}
	for _, route := range set.Routes {
		if err := remove(unix.RTM_DELROUTE, route.encode(index), unix.ESRCH); err != nil {
			return err
		}
	}
	for _, address := range set.Addresses {
		if err := remove(unix.RTM_DELADDR, address.encode(index), unix.EADDRNOTAVAIL); err != nil {
			return err
		}
	}
	return nil
}

func (s *spaces) index(set Interface) (int32, error) {
	answers, err := s.ask(set.Namespace, message{unix.RTM_GETLINK, unix.NLM_F_REQUEST, linkNamed(set.Name)})
	if err != nil {
		return 0, err
	}
	if len(answers) != 1 || len(answers[0].data) < unix.SizeofIfInfomsg {
		return 0, errors.New("the kernel's answer is none about a link")
	}
	return int32(binary.NativeEndian.Uint32(answers[0].data[4:])), nil
}

// linkHeader is struct ifinfomsg, with flags to set. index 0: attributes say which link.
func linkHeader(index int32, flags uint32) []byte {
	header := make([]byte, 4, unix.SizeofIfInfomsg)
	header = binary.NativeEndian.AppendUint32(header, uint32(index))
	header = binary.NativeEndian.AppendUint32(header, flags)
	return binary.NativeEndian.AppendUint32(header, flags)
}

func linkNamed(name string) []byte {
	var link attributes
	link.text(unix.IFLA_IFNAME, name)
	return slices.Concat(linkHeader(0, 0), link)
}

func linkWithoutIPv6Address(index int32) []byte {
	var link attributes
	link.nested(unix.IFLA_AF_SPEC, func(families *attributes) {
		families.nested(unix.AF_INET6, func(inet6 *attributes) {
			inet6.uint8(unix.IFLA_INET6_ADDR_GEN_MODE, addrGenModeNone)
		})
	})
	return slices.Concat(linkHeader(index, 0), link)
}

// encode: struct ifaddrmsg and attributes.
func (a Address) encode(index int32) []byte {
	scope := byte(unix.RT_SCOPE_UNIVERSE)
	if a.Link {
		scope = unix.RT_SCOPE_LINK
	}
	header := []byte{unix.AF_INET, byte(a.Prefix.Bits()), 0, scope}
	header = binary.NativeEndian.AppendUint32(header, uint32(index))
	var address attributes
	address.bytes(unix.IFA_LOCAL, a.Prefix.Addr().AsSlice())
	address.bytes(unix.IFA_ADDRESS, a.Prefix.Addr().AsSlice())
	return append(header, address...)
}

// encode: struct ndmsg and attributes.
func (n Neighbour) encode(index int32) []byte {
	header := []byte{unix.AF_INET, 0, 0, 0}
	header = binary.NativeEndian.AppendUint32(header, uint32(index))
	header = binary.NativeEndian.AppendUint16(header, unix.NUD_PERMANENT)
	header = append(header, 0, 0)
	var neighbour attributes
	neighbour.bytes(unix.NDA_DST, n.Address.AsSlice())
	neighbour.bytes(unix.NDA_LLADDR, n.MAC)
	return append(header, neighbour...)
}

// encode: struct rtmsg and attributes.
func (r Route) encode(index int32) []byte {
	scope, form, flags := byte(unix.RT_SCOPE_LINK), byte(unix.RTN_UNICAST), uint32(0)
	switch {
	case r.Unreachable:
		scope, form = unix.RT_SCOPE_UNIVERSE, unix.RTN_UNREACHABLE
	case r.Via != nil:
		scope, flags = unix.RT_SCOPE_UNIVERSE, unix.RTNH_F_ONLINK
	}
	header := []byte{unix.AF_INET, byte(r.To.Bits()), 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, scope, form}
	header = binary.NativeEndian.AppendUint32(header, flags)
	var route attributes
	if r.To.Bits() > 0 {
		route.bytes(unix.RTA_DST, r.To.Addr().AsSlice())
	}
	if !r.Unreachable {
		route.uint32(unix.RTA_OIF, uint32(index))
	}
	if r.Via != nil {
		route.bytes(unix.RTA_GATEWAY, r.Via.AsSlice())
	}
	if r.Source != nil {
		route.bytes(unix.RTA_PREFSRC, r.Source.AsSlice())
	}
	return append(header, route...)
}

func purpose(kind uint16) string {
	switch kind {
	case unix.RTM_NEWLINK:
		return "bring it up"
	case unix.RTM_NEWADDR:
		return "add an address"
	case unix.RTM_DELADDR:
		return "remove an address"
	case unix.RTM_NEWNEIGH:
		return "add a neighbour"
	case unix.RTM_NEWROUTE:
		return "add a route"
	}
	return "remove a route"
}

func ignoring(err error, gone error) error {
	if errors.Is(err, gone) {
		return nil
	}
	return err
}
