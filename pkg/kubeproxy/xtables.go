package kubeproxy

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// xtLayout says where the fields of an entry are; linux/netfilter_ipv4/ip_tables.h
// and linux/netfilter_ipv6/ip6_tables.h.
type xtLayout struct {
	targetOffset int // __u16; next_offset follows
	header       int // size of the entry's fixed part
}

var (
	xtLayout4 = xtLayout{targetOffset: 88, header: 112}
	xtLayout6 = xtLayout{targetOffset: 140, header: 168}
)

// Sizes and offsets of linux/netfilter/x_tables.h.
const (
	xtHeaderSize  = 32 // of matches and targets: __u16 size, name, __u8 revision
	xtNameSize    = 29
	xtCounterSize = 16
	xtTableName   = 32
	xtHooks       = 5
	xtErrorTarget = "ERROR"
)

// xtEntry is one rule as the kernel keeps it.
type xtEntry struct {
	offset  int // in the table
	data    []byte
	chain   string // the chain that it is in; for a head its name
	head    bool   // begins a user's chain, or ends the table
	rule    rule
	verdict int      // offset of the verdict in data, 0 for another target
	to      *xtEntry // jump target, nil for a verdict such as ACCEPT
	reject  bool
	dropped bool // does not get into the next table
}

// xtTable is a table of iptables-legacy as the kernel hands it out.
type xtTable struct {
	tableName  string
	layout     xtLayout
	validHooks uint32
	hookEntry  [xtHooks]uint32
	underflow  [xtHooks]uint32
	before     int      // how many entries the kernel's table has
	first      *xtEntry // a new one that FORWARD begins with
	entries    []*xtEntry
	names      []string
}

// hookForward is the hook of the chain FORWARD.
const hookForward = 2

// hookChains are the names of the chains by hook.
var hookChains = [xtHooks]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// newTable reads a table from the kernel's description of it and its entries.
func newTable(name string, layout xtLayout, info *xtInfo, entries []byte) (*xtTable, error) {
	t := &xtTable{
		tableName: name, layout: layout,
		validHooks: info.ValidHooks, hookEntry: info.HookEntry, underflow: info.Underflow,
	}
	if err := t.parse(entries); err != nil {
		return nil, err
	}
	return t, nil
}

// parse takes the entries of the table apart.
func (t *xtTable) parse(blob []byte) error {
	chain := ""
	starts := make(map[int]string) // first rule of a user's chain → its name
	for at := 0; at < len(blob); {
		e, err := t.parseEntry(blob, at)
		if err != nil {
			return fmt.Errorf("entry at byte %d: %w", at, err)
		}
		for hook, name := range hookChains {
			if t.validHooks&(1<<hook) != 0 && int(t.hookEntry[hook]) == at {
				chain = name
				t.names = append(t.names, name)
			}
		}
		if e.head {
			chain = e.chain
			if at+len(e.data) < len(blob) {
				starts[at+len(e.data)] = chain
				t.names = append(t.names, chain)
			}
		}
		e.chain = chain
		t.entries = append(t.entries, e)
		at += len(e.data)
	}
	t.before = len(t.entries)
	return t.resolve(starts)
}

// resolve finds out where the entries lead to.
func (t *xtTable) resolve(starts map[int]string) error {
	at := make(map[int]*xtEntry)
	for _, e := range t.entries {
		at[e.offset] = e
	}
	for _, e := range t.entries {
		if e.verdict == 0 || e.jump() < 0 {
			continue
		}
		if e.to = at[e.jump()]; e.to == nil {
			return fmt.Errorf("entry at byte %d leads to byte %d, where none begins", e.offset, e.jump())
		}
		// One without a target leads to the next one.
		if e.jump() != e.offset+len(e.data) {
			e.rule.target = starts[e.jump()]
		}
	}
	for hook, name := range hookChains {
		if t.validHooks&(1<<hook) != 0 && (at[int(t.hookEntry[hook])] == nil || at[int(t.underflow[hook])] == nil) {
			return fmt.Errorf("chain %s begins or ends where there is no entry", name)
		}
	}
	return nil
}

// parseEntry reads the entry that begins at a byte of the table.
func (t *xtTable) parseEntry(blob []byte, at int) (*xtEntry, error) {
	rest := blob[at:]
	if len(rest) < t.layout.header {
		return nil, fmt.Errorf("%d bytes are too few", len(rest))
	}
	target := int(binary.NativeEndian.Uint16(rest[t.layout.targetOffset:]))
	size := int(binary.NativeEndian.Uint16(rest[t.layout.targetOffset+2:]))
	if target < t.layout.header || size < target+xtHeaderSize+4 || size > len(rest) {
		return nil, fmt.Errorf("target at %d, size %d of %d", target, size, len(rest))
	}
	e := &xtEntry{offset: at, data: bytes.Clone(rest[:size])}
	e.rule.id = uint64(at)
	switch name := cString(e.data[target+2:][:xtNameSize]); name {
	case "":
		e.verdict = target + xtHeaderSize
	case xtErrorTarget:
		e.head = true
		e.chain = cString(e.data[target+xtHeaderSize:])
	case "REJECT":
		e.reject = true
	}
	for m := t.layout.header; m+xtHeaderSize <= target; {
		length := int(binary.NativeEndian.Uint16(e.data[m:]))
		if length < xtHeaderSize || m+length > target {
			return nil, fmt.Errorf("match of %d bytes", length)
		}
		if cString(e.data[m+2:][:xtNameSize]) == "comment" {
			e.rule.comment = cString(e.data[m+xtHeaderSize : m+length])
		}
		m += length
	}
	return e, nil
}

// jump returns where the entry leads to, negative for a verdict such as ACCEPT.
func (e *xtEntry) jump() int {
	return int(int32(binary.NativeEndian.Uint32(e.data[e.verdict:])))
}

func (t *xtTable) name() string     { return t.tableName }
func (t *xtTable) chains() []string { return t.names }

func (t *xtTable) rules(chain string) ([]rule, error) {
	var list []rule
	for _, e := range t.entries {
		if e.chain == chain && !e.head {
			list = append(list, e.rule)
		}
	}
	return list, nil
}

// drop leaves out of the next table what the plan says.
func (t *xtTable) drop(p plan) {
	gone := make(map[string]bool)
	for _, name := range p.chains {
		gone[name] = true
	}
	links := make(map[uint64]bool)
	for _, l := range p.links {
		links[l.rule] = true
	}
	for _, e := range t.entries {
		e.dropped = gone[e.chain] || links[e.rule.id]
	}
}

// next returns the table as it is to be.
func (t *xtTable) next() (blob []byte, hookEntry, underflow [xtHooks]uint32) {
	// at says where an entry will be, or the first behind it that stays.
	at := make(map[*xtEntry]uint32)
	atOld := make(map[int]uint32)
	size := uint32(0)
	for _, e := range t.entries {
		at[e] = size
		if e.offset >= 0 {
			atOld[e.offset] = size
		}
		if !e.dropped {
			size += uint32(len(e.data))
		}
	}
	for _, e := range t.entries {
		if e.dropped {
			continue
		}
		data := bytes.Clone(e.data)
		if e.to != nil {
			binary.NativeEndian.PutUint32(data[e.verdict:], at[e.to])
		}
		blob = append(blob, data...)
	}
	for hook := range hookChains {
		hookEntry[hook], underflow[hook] = t.hookEntry[hook], t.underflow[hook]
		if t.validHooks&(1<<hook) != 0 {
			hookEntry[hook] = atOld[int(t.hookEntry[hook])]
			underflow[hook] = atOld[int(t.underflow[hook])]
		}
	}
	if t.first != nil {
		hookEntry[hookForward] = at[t.first]
	}
	return blob, hookEntry, underflow
}

// remaining returns how many entries the next table has.
func (t *xtTable) remaining() int {
	count := 0
	for _, e := range t.entries {
		if !e.dropped {
			count++
		}
	}
	return count
}

func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}
