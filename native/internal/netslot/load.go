package netslot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// loadTables makes compiled tables in the thread's namespace, instead of those with their names when replace is set.
func loadTables(compiled []byte, replace bool) (err error) {
	messages, err := decode(compiled)
	if err != nil {
		return fmt.Errorf("compiled rules: %w", err)
	}
	if len(messages) == 0 {
		return errors.New("there are no compiled rules")
	}
	if replace {
		messages = append(removals(messages), messages...)
	}
	// Errors are told unasked, the first one first; with the last it is done.
	messages[len(messages)-1].flags |= unix.NLM_F_ACK
	conn, err := dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.close()) }()
	// All of it or nothing.
	batch := slices.Concat([]message{batchEdge(unix.NFNL_MSG_BATCH_BEGIN)}, messages, []message{batchEdge(unix.NFNL_MSG_BATCH_END)})
	_, err = conn.ask(batch...)
	return err
}

// removals empties the place for tables. Naming a table makes it, so there always is one to remove.
func removals(messages []message) []message {
	var before []message
	for _, one := range messages {
		if one.kind == typeOf(unix.NFT_MSG_NEWTABLE) {
			before = append(before, one, message{typeOf(unix.NFT_MSG_DELTABLE), unix.NLM_F_REQUEST, one.data})
		}
	}
	return before
}

func batchEdge(kind uint16) message {
	header := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, 0}, unix.NFNL_SUBSYS_NFTABLES)
	return message{kind, unix.NLM_F_REQUEST, header}
}

func typeOf(kind uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | kind }
