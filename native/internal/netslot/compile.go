package netslot

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"slices"

	"golang.org/x/sys/unix"
)

// Tables are compiled once and copied often. `nft` turns a text into tables in a namespace that nobody else sees; what the kernel
// then says of them is, less what it numbered itself, what it takes to make them again elsewhere. So rules are written in one
// language only, and starting `nft`, ten times as dear as loading what it makes, happens once for a text.

// nfgenmsgBytes is the length of struct nfgenmsg, the header of each message about tables: family, version, resource.
const nfgenmsgBytes = 4

// allFamilies asks without naming one.
var allFamilies = make([]byte, nfgenmsgBytes)

// elementsAtOnce keeps a list of elements below the 64 KiB of an attribute.
const elementsAtOnce = 256

// Of <linux/netfilter/nf_tables.h>, which the unix package lacks.
const (
	chainFlags     = 10 // NFTA_CHAIN_FLAGS
	chainUserData  = 12 // NFTA_CHAIN_USERDATA
	setExpr        = 17 // NFTA_SET_EXPR
	setExpressions = 18 // NFTA_SET_EXPRESSIONS
)

// copied is a kind of message that a copy consists of: which ask for it, which makes it, and the attributes that matter. The others
// are counts and the kernel's own numbers.
type copied struct {
	get, make uint16
	keep      []uint16
	flags     uint16
}

var (
	tables = copied{unix.NFT_MSG_GETTABLE, unix.NFT_MSG_NEWTABLE, []uint16{unix.NFTA_TABLE_NAME, unix.NFTA_TABLE_FLAGS}, unix.NLM_F_CREATE}
	sets   = copied{unix.NFT_MSG_GETSET, unix.NFT_MSG_NEWSET, []uint16{
		unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, unix.NFTA_SET_FLAGS, unix.NFTA_SET_KEY_TYPE, unix.NFTA_SET_KEY_LEN,
		unix.NFTA_SET_DATA_TYPE, unix.NFTA_SET_DATA_LEN, unix.NFTA_SET_POLICY, unix.NFTA_SET_DESC, unix.NFTA_SET_TIMEOUT,
		unix.NFTA_SET_GC_INTERVAL, unix.NFTA_SET_USERDATA, unix.NFTA_SET_OBJ_TYPE, setExpr, setExpressions,
	}, unix.NLM_F_CREATE}
	chains = copied{unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_NEWCHAIN, []uint16{
		unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, unix.NFTA_CHAIN_HOOK, unix.NFTA_CHAIN_POLICY, unix.NFTA_CHAIN_TYPE,
		chainFlags, chainUserData,
	}, unix.NLM_F_CREATE}
	rules = copied{unix.NFT_MSG_GETRULE, unix.NFT_MSG_NEWRULE, []uint16{
		unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, unix.NFTA_RULE_EXPRESSIONS, unix.NFTA_RULE_COMPAT, unix.NFTA_RULE_USERDATA,
	}, unix.NLM_F_CREATE | unix.NLM_F_APPEND}
)

// Compile returns the tables that a text for `nft -f` makes, after it has made a copy and found it to be the same. The few rules
// that the kernel does not take back in its own words (`tcp option … set`) and named objects (counters, timeouts) are refused.
func Compile(text []byte) ([]byte, error) {
	var compiled []byte
	err := apart(func(*spaces) (err error) {
		compiled, err = inNewNamespace(func() error {
			nft := exec.Command("nft", "-f", "-")
			nft.Stdin = bytes.NewReader(text)
			if said, err := nft.CombinedOutput(); err != nil {
				return fmt.Errorf("nft: %w: %s", err, bytes.TrimSpace(said))
			}
			return nil
		})
		if err != nil {
			return err
		}
		again, err := inNewNamespace(func() error { return loadTables(compiled, false) })
		if err != nil {
			return fmt.Errorf("make a copy of the rules: %w", err)
		}
		if !bytes.Equal(again, compiled) {
			return errors.New("make a copy of the rules: the kernel has made something else of them")
		}
		return nil
	})
	return compiled, err
}

// inNewNamespace returns the tables that work makes where there are none. The thread stays there.
func inNewNamespace(work func() error) ([]byte, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("make a namespace to compile rules in: %w", err)
	}
	if err := work(); err != nil {
		return nil, err
	}
	messages, err := copyTables()
	if err != nil {
		return nil, fmt.Errorf("read the compiled rules: %w", err)
	}
	var all []byte
	for _, one := range messages {
		all = one.encode(all, 0)
	}
	return all, nil
}

// copyTables returns the messages that make the tables of the thread's namespace.
func copyTables() (_ []message, err error) {
	conn, err := dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.close()) }()
	for _, get := range []uint16{unix.NFT_MSG_GETOBJ, unix.NFT_MSG_GETFLOWTABLE} {
		found, err := dump(conn, get, allFamilies)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			return nil, errors.New("objects with a name of their own cannot be copied")
		}
	}
	c := copier{conn: conn}
	// Chains come before the elements and rules that lead to them.
	for _, step := range []func() error{
		func() error { return c.copy(tables, nil) },
		func() error { return c.copy(chains, nil) },
		func() error { return c.copy(sets, c.finishSet) },
		func() error { return c.copy(rules, nil) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return c.messages, nil
}

type copier struct {
	conn     *socket
	messages []message
	sets     uint32
}

// copy appends what makes all there is of a kind; finish is called after each.
func (c *copier) copy(kind copied, finish func(found message) error) error {
	all, err := dump(c.conn, kind.get, allFamilies)
	if err != nil {
		return err
	}
	for _, found := range all {
		data, err := pick(found.data, kind.keep)
		if err != nil {
			return err
		}
		c.add(kind.make, kind.flags, data)
		if finish == nil {
			continue
		}
		if err := finish(found); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) add(kind, flags uint16, data []byte) {
	c.messages = append(c.messages, message{typeOf(kind), unix.NLM_F_REQUEST | flags, data})
}

// finishSet numbers the set that was added last and appends what fills it. The number means nothing beyond the transaction, but
// the kernel wants one.
func (c *copier) finishSet(found message) error {
	c.sets += 1
	var number attributes
	number.bytes(unix.NFTA_SET_ID, binary.BigEndian.AppendUint32(nil, c.sets))
	last := &c.messages[len(c.messages)-1]
	last.data = slices.Concat(last.data, number)

	about, err := pick(found.data, []uint16{unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME})
	if err != nil {
		return err
	}
	elements, err := elementsOf(c.conn, about)
	if err != nil {
		return err
	}
	for part := range slices.Chunk(elements, elementsAtOnce) {
		var list attributes
		list.nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(list *attributes) {
			for _, element := range part {
				list.bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, element.raw)
			}
		})
		c.add(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, slices.Concat(about, list))
	}
	return nil
}

func dump(conn *socket, get uint16, about []byte) ([]message, error) {
	return conn.ask(message{typeOf(get), unix.NLM_F_REQUEST | unix.NLM_F_DUMP, about})
}

// pick returns a message's data with some of its attributes.
func pick(data []byte, kinds []uint16) ([]byte, error) {
	if len(data) < nfgenmsgBytes {
		return nil, errCutOff
	}
	all, err := attributesIn(data[nfgenmsgBytes:])
	if err != nil {
		return nil, err
	}
	// Family; version 0; resource 0.
	picked := []byte{data[0], 0, 0, 0}
	for _, one := range all {
		if slices.Contains(kinds, one.kind) {
			picked = append(picked, one.raw...)
		}
	}
	return picked, nil
}

// element is one of a set, or an end of an interval.
type element struct {
	raw, key []byte
	isEnd    bool
}

// compare: where one interval ends and the next starts, the end comes first.
func (e element) compare(other element) int {
	rank := map[bool]int{true: 0, false: 1}
	return cmp.Or(bytes.Compare(e.key, other.key), cmp.Compare(rank[e.isEnd], rank[other.isEnd]))
}

// elementsOf returns the elements of a set as nft would send them: the kernel takes the ends of intervals in this order alone, and
// tells them in another. A set is named alike in messages about it and about its elements.
func elementsOf(conn *socket, set []byte) ([]element, error) {
	found, err := dump(conn, unix.NFT_MSG_GETSETELEM, set)
	if err != nil {
		return nil, err
	}
	var elements []element
	for _, one := range found {
		lists, err := attributesIn(one.data[nfgenmsgBytes:])
		if err != nil {
			return nil, err
		}
		for _, list := range lists {
			if list.kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			items, err := attributesIn(list.data)
			if err != nil {
				return nil, err
			}
			for _, item := range items {
				element, err := parseElement(item.data)
				if err != nil {
					return nil, err
				}
				elements = append(elements, element)
			}
		}
	}
	slices.SortStableFunc(elements, element.compare)
	return elements, nil
}

func parseElement(raw []byte) (element, error) {
	parts, err := attributesIn(raw)
	parsed := element{raw: raw}
	for _, part := range parts {
		switch part.kind {
		case unix.NFTA_SET_ELEM_KEY:
			parsed.key = part.data
		case unix.NFTA_SET_ELEM_FLAGS:
			parsed.isEnd = binary.BigEndian.Uint32(part.data)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		}
	}
	return parsed, err
}
