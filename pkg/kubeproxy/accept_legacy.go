package kubeproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// Verdicts of linux/netfilter.h and x_tables.h as entries have them.
const (
	xtDrop   = -1
	xtAccept = -2
	xtReturn = -5
)

// acceptLegacy makes the chain in the table filter of iptables-legacy, if it drops
// packets in FORWARD.
func acceptLegacy(ctx context.Context, f legacyFamily) (made bool, err error) {
	err = changeLegacyFilter(ctx, f, func(t *xtTable) bool {
		made = t.dropsForwarded() && acceptPlan(t).empty()
		if made {
			t.addAccept()
		}
		return made
	})
	return made && err == nil, err
}

// changeLegacyFilter has a table filter that is in use changed; change reports whether
// it did.
func changeLegacyFilter(ctx context.Context, f legacyFamily, change func(*xtTable) bool) error {
	names, err := f.inUse()
	if err != nil || !slices.Contains(names, "filter") {
		return err
	}
	s, unlock, err := openLegacyLocked(ctx, f)
	if err != nil {
		return err
	}
	defer unlock()
	for attempt := 1; ; attempt++ {
		t, err := s.read("filter")
		if err != nil || !change(t) {
			return err
		}
		if err = s.write(t); !errors.Is(err, unix.EAGAIN) || attempt == attempts {
			return err
		}
	}
}

// dropsForwarded reports whether FORWARD has a policy or a rule that drops or rejects.
func (t *xtTable) dropsForwarded() bool {
	return slices.ContainsFunc(t.entries, func(e *xtEntry) bool {
		return e.chain == forwardChain && !e.head && (e.reject || e.verdict > 0 && e.jump() == xtDrop)
	})
}

// addAccept adds the chain, before the entry that ends the table, and a rule at the
// beginning of FORWARD that leads there.
func (t *xtTable) addAccept() {
	mark := binary.NativeEndian.AppendUint32(nil, ForwardMark)
	mark = append(append(mark, mark...), 0) // struct xt_mark_mtinfo1: mark, mask, invert
	first := t.newRule(xtAccept, xtExtension("mark", 1, mark))
	jump := t.newRule(0)
	jump.to, t.first = first, jump
	last := len(t.entries) - 1
	t.entries = slices.Insert(t.entries, last,
		t.newHead(acceptChain), first,
		t.newRule(xtAccept, xtExtension("conntrack", 3, conntrackMatch())),
		t.newRule(xtReturn))
	begin := slices.IndexFunc(t.entries, func(e *xtEntry) bool { return e.offset == int(t.hookEntry[hookForward]) })
	t.entries = slices.Insert(t.entries, begin, jump)
}

// newRule returns a rule with matches and a verdict.
func (t *xtTable) newRule(verdict int32, matches ...[]byte) *xtEntry {
	e := t.newEntry(xtExtension("", 0, binary.NativeEndian.AppendUint32(nil, uint32(verdict))), matches...)
	e.verdict = int(binary.NativeEndian.Uint16(e.data[t.layout.targetOffset:])) + xtHeaderSize
	return e
}

// newHead returns what a user's chain begins with.
func (t *xtTable) newHead(chain string) *xtEntry {
	name := make([]byte, 30) // XT_FUNCTION_MAXNAMELEN
	copy(name, chain)
	return t.newEntry(xtExtension(xtErrorTarget, 0, name))
}

func (t *xtTable) newEntry(target []byte, matches ...[]byte) *xtEntry {
	data := make([]byte, t.layout.header)
	for _, m := range matches {
		data = append(data, m...)
	}
	binary.NativeEndian.PutUint16(data[t.layout.targetOffset:], uint16(len(data)))
	data = append(data, target...)
	binary.NativeEndian.PutUint16(data[t.layout.targetOffset+2:], uint16(len(data)))
	return &xtEntry{offset: -1, data: data}
}

// xtExtension returns a match or a target, aligned.
func xtExtension(name string, revision byte, payload []byte) []byte {
	size := (xtHeaderSize + len(payload) + 7) &^ 7
	e := make([]byte, size)
	binary.NativeEndian.PutUint16(e, uint16(size))
	copy(e[2:], name)
	e[xtHeaderSize-1] = revision
	copy(e[xtHeaderSize:], payload)
	return e
}
