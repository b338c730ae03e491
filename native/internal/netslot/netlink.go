package netslot

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Netlink, as far as a program needs it that asks the kernel one thing after the other on one thread: the libraries for it hand
// each call to goroutines of their own, and for a thread that is locked to a namespace every such change costs two switches of
// threads, more in all than what the kernel does for us.

// message is what is sent and answered: a header, a fixed part by its kind, attributes.
type message struct {
	kind, flags uint16
	data        []byte
}

// encode appends a message in the kernel's form.
func (m message) encode(into []byte, sequence uint32) []byte {
	into = binary.NativeEndian.AppendUint32(into, uint32(unix.NLMSG_HDRLEN+len(m.data)))
	into = binary.NativeEndian.AppendUint16(into, m.kind)
	into = binary.NativeEndian.AppendUint16(into, m.flags)
	into = binary.NativeEndian.AppendUint32(into, sequence)
	into = binary.NativeEndian.AppendUint32(into, 0) // from whom: the kernel knows
	return pad(append(into, m.data...))
}

var errCutOff = errors.New("a message of netlink is cut off")

// decode splits messages.
func decode(raw []byte) ([]message, error) {
	var all []message
	for len(raw) > 0 {
		if len(raw) < unix.NLMSG_HDRLEN {
			return nil, errCutOff
		}
		length := int(binary.NativeEndian.Uint32(raw))
		if length < unix.NLMSG_HDRLEN || length > len(raw) {
			return nil, errCutOff
		}
		all = append(all, message{
			kind:  binary.NativeEndian.Uint16(raw[4:]),
			flags: binary.NativeEndian.Uint16(raw[6:]),
			data:  raw[unix.NLMSG_HDRLEN:length],
		})
		raw = raw[min(aligned(length), len(raw)):]
	}
	return all, nil
}

// attributes are encoded ones, one after the other.
type attributes []byte

func (a *attributes) bytes(kind uint16, value []byte) {
	*a = binary.NativeEndian.AppendUint16(*a, uint16(unix.SizeofNlAttr+len(value)))
	*a = binary.NativeEndian.AppendUint16(*a, kind)
	*a = pad(append(*a, value...))
}

func (a *attributes) uint8(kind uint16, value uint8) { a.bytes(kind, []byte{value}) }

func (a *attributes) uint32(kind uint16, value uint32) {
	a.bytes(kind, binary.NativeEndian.AppendUint32(nil, value))
}

func (a *attributes) text(kind uint16, value string) { a.bytes(kind, append([]byte(value), 0)) }

func (a *attributes) nested(kind uint16, fill func(*attributes)) {
	var inner attributes
	fill(&inner)
	a.bytes(kind|unix.NLA_F_NESTED, inner)
}

type attribute struct {
	kind uint16 // without flags
	data []byte
	raw  []byte // with the header, padded
}

func attributesIn(raw []byte) ([]attribute, error) {
	var all []attribute
	for len(raw) > 0 {
		if len(raw) < unix.SizeofNlAttr {
			return nil, errCutOff
		}
		length := int(binary.NativeEndian.Uint16(raw))
		end := aligned(length)
		if length < unix.SizeofNlAttr || end > len(raw) {
			return nil, errCutOff
		}
		kind := binary.NativeEndian.Uint16(raw[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		all = append(all, attribute{kind: kind, data: raw[unix.SizeofNlAttr:length], raw: raw[:end]})
		raw = raw[end:]
	}
	return all, nil
}

func aligned(length int) int { return (length + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

func pad(data []byte) []byte { return append(data, make([]byte, aligned(len(data))-len(data))...) }

// socket speaks with the kernel about one namespace.
type socket struct {
	fd       int
	sequence uint32
	buffer   []byte
}

// answerBytes is more than the kernel puts into one answer.
const answerBytes = 64 << 10

// dial opens a socket in the thread's namespace.
func dial(family int) (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return nil, err
	}
	// Errors with words, where the kernel has any, and without what was asked.
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK} {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1))
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &socket{fd: fd, buffer: make([]byte, answerBytes)}, nil
}

func (s *socket) close() error { return unix.Close(s.fd) }

// ask sends messages at once, the last of which is to be answered, and returns what is answered up to its end or to the first error.
func (s *socket) ask(requests ...message) ([]message, error) {
	var raw []byte
	for _, request := range requests {
		s.sequence += 1
		raw = request.encode(raw, s.sequence)
	}
	if err := unix.Sendto(s.fd, raw, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	var answers []message
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		received, err := decode(append([]byte(nil), s.buffer[:n]...))
		if err != nil {
			return nil, err
		}
		for _, one := range received {
			switch one.kind {
			case unix.NLMSG_ERROR, unix.NLMSG_DONE:
				return answers, failure(one)
			}
			answers = append(answers, one)
			if one.flags&unix.NLM_F_MULTI == 0 {
				return answers, nil
			}
		}
	}
}

// failure is what an answer's end says: nil that all is well.
func failure(end message) error {
	if len(end.data) < 4 {
		return nil
	}
	code := int32(binary.NativeEndian.Uint32(end.data))
	if code == 0 {
		return nil
	}
	errno := unix.Errno(-code)
	words := 4
	if end.kind == unix.NLMSG_ERROR {
		words += unix.NLMSG_HDRLEN
	}
	if end.flags&unix.NLM_F_ACK_TLVS != 0 && len(end.data) >= words {
		details, err := attributesIn(end.data[words:])
		if err != nil {
			return errno
		}
		for _, detail := range details {
			if detail.kind == unix.NLMSGERR_ATTR_MSG {
				return fmt.Errorf("%w: %s", errno, unix.ByteSliceToString(detail.data))
			}
		}
	}
	return errno
}
