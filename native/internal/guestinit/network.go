package guestinit

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The structures of <net/route.h> and <net/if_arp.h>, which the unix package lacks.
type (
	// socketAddress is struct sockaddr as IPv4 and Ethernet addresses fill it.
	socketAddress struct {
		family uint16
		data   [14]byte
	}
	routeEntry struct {
		_                  uint64
		destination        socketAddress
		gateway, mask      socketAddress
		flags              uint16
		_                  [2]uint64
		metric             int16
		device             *byte
		mtu, window        uint64
		initialRoundTripMs uint16
	}
	arpRequest struct {
		protocol, hardware socketAddress
		flags              int32
		mask               socketAddress
		device             [unix.IFNAMSIZ]byte
	}
)

const (
	routeUp      = 0x1 // RTF_UP
	routeGateway = 0x2 // RTF_GATEWAY
	arpComplete  = 0x2 // ATF_COM
	arpPermanent = 0x4 // ATF_PERM
)

// startNetwork brings up the loopback, whose addresses the kernel knows, and the machine's connection.
func startNetwork(network *Network) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return problem("open a socket for the network's settings", err)
	}
	defer unix.Close(fd)
	if err := bringUp(fd, "lo"); err != nil {
		return problem("bring up network device lo", err)
	}
	if network == nil {
		return nil
	}
	return problem("set up network device "+network.Device, network.start(fd))
}

func (n *Network) start(fd int) error {
	mtu, err := unix.NewIfreq(n.Device)
	if err != nil {
		return err
	}
	mtu.SetUint32(uint32(n.MTUBytes))
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFMTU, mtu); err != nil {
		return problem("MTU", err)
	}
	if err := setAddress(fd, n.Device, unix.SIOCSIFADDR, n.Address.Addr().As4()); err != nil {
		return problem("address", err)
	}
	if err := setAddress(fd, n.Device, unix.SIOCSIFNETMASK, maskOf(n.Address)); err != nil {
		return problem("prefix length", err)
	}
	if err := bringUp(fd, n.Device); err != nil {
		return problem("bring up", err)
	}
	// The neighbour first: with the route there, a packet might ask for it.
	neighbour := arpRequest{protocol: ipv4(n.Gateway.As4()), flags: arpComplete | arpPermanent}
	neighbour.hardware.family = unix.ARPHRD_ETHER
	copy(neighbour.hardware.data[:], n.GatewayMAC[:])
	copy(neighbour.device[:], n.Device)
	if err := control(fd, unix.SIOCSARP, unsafe.Pointer(&neighbour)); err != nil {
		return problem("gateway's MAC address", err)
	}
	anywhere := ipv4([4]byte{})
	route := routeEntry{destination: anywhere, mask: anywhere, gateway: ipv4(n.Gateway.As4()), flags: routeUp | routeGateway}
	return problem("default route", control(fd, unix.SIOCADDRT, unsafe.Pointer(&route)))
}

func bringUp(fd int, device string) error {
	flags, err := unix.NewIfreq(device)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, flags); err != nil {
		return err
	}
	flags.SetUint16(flags.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, flags)
}

func setAddress(fd int, device string, request uint, address [4]byte) error {
	ifreq, err := unix.NewIfreq(device)
	if err != nil {
		return err
	}
	if err := ifreq.SetInet4Addr(address[:]); err != nil {
		return err
	}
	return unix.IoctlIfreq(fd, request, ifreq)
}

func maskOf(prefix netip.Prefix) [4]byte {
	allOnes := netip.AddrFrom4([4]byte{0xff, 0xff, 0xff, 0xff})
	return netip.PrefixFrom(allOnes, prefix.Bits()).Masked().Addr().As4()
}

// ipv4 is an IPv4 address behind port 0.
func ipv4(address [4]byte) socketAddress {
	full := socketAddress{family: unix.AF_INET}
	copy(full.data[2:], address[:])
	return full
}

func control(fd int, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}
