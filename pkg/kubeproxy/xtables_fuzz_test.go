package kubeproxy

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/tests/bounds"
)

// FuzzXTables: whatever the kernel's answers, a struct ipt_getinfo and the entries, they end
// in an error or in a table that is these bytes. What is written in its place has all rules
// that were not to be removed, in their order, leading to where they led before.
func FuzzXTables(f *testing.F) {
	f.Fuzz(func(t *testing.T, ipv6 bool, answers []byte) {
		var info xtInfo
		size, err := binary.Decode(answers, binary.NativeEndian, &info)
		if err != nil {
			return
		}
		layout := xtLayout4
		if ipv6 {
			layout = xtLayout6
		}
		blob := answers[size:]
		var table *xtTable
		bounds.Check(t, len(answers), func() { table, err = newTable(cString(info.Name[:]), layout, &info, blob) })
		if err != nil {
			return
		}
		if next, hooks, underflow := table.next(); !bytes.Equal(next, blob) || hooks != table.hookEntry || underflow != table.underflow {
			t.Fatalf("a table that nothing is removed from becomes\n% x, was\n% x", next, blob)
		}
		bounds.Check(t, len(answers), func() { wantRemoved(t, table) })
		table, err = newTable(cString(info.Name[:]), layout, &info, blob)
		if err != nil {
			t.Fatal(err)
		}
		wantAccepts(t, table)
	})
}

// place is a rule as others see it.
type place struct{ chain, target, comment string }

// places returns the rules of a table that stay in it.
func places(table *xtTable) []place {
	var list []place
	for _, e := range table.entries {
		if !e.dropped && !e.head {
			list = append(list, place{e.chain, e.rule.target, e.rule.comment})
		}
	}
	return list
}

// reread returns the table that the kernel gets as it would hand it out.
func reread(t *testing.T, table *xtTable) *xtTable {
	t.Helper()
	info := xtInfo{ValidHooks: table.validHooks}
	copy(info.Name[:], table.tableName)
	var blob []byte
	blob, info.HookEntry, info.Underflow = table.next()
	next, err := newTable(table.tableName, table.layout, &info, blob)
	if err != nil {
		t.Fatalf("what is written cannot be read: %v\n% x", err, blob)
	}
	if len(next.entries) != table.remaining() {
		t.Fatalf("%d entries are told to the kernel, there are %d", table.remaining(), len(next.entries))
	}
	return next
}

// wantRemoved removes kube-proxy's chains and fails the test unless all else stays.
func wantRemoved(t *testing.T, table *xtTable) {
	t.Helper()
	p, err := makePlan(table)
	if err != nil {
		t.Fatal(err)
	}
	table.drop(p)
	next := reread(t, table)
	if got, want := places(next), places(table); !slices.Equal(got, want) {
		t.Fatalf("without %+v the rules are\n%+v, want\n%+v", p, got, want)
	}
	for _, name := range p.chains {
		if slices.Contains(next.names, name) || slices.ContainsFunc(places(next), func(p place) bool { return p.target == name }) {
			t.Fatalf("%s is still there, or led to", name)
		}
	}
}

// wantAccepts adds the chain for forwarded packets where it is needed, and fails the test
// unless all else stays and the chain can be removed again.
func wantAccepts(t *testing.T, table *xtTable) {
	t.Helper()
	if table.tableName != "filter" || !table.dropsForwarded() || !acceptPlan(table).empty() {
		return
	}
	before := places(table)
	blob, hooks, underflow := table.next()
	table.addAccept()
	next := reread(t, table)
	if rules, _ := next.rules(forwardChain); len(rules) == 0 || rules[0].target != acceptChain {
		t.Fatalf("FORWARD does not begin with a jump to %s: %+v", acceptChain, rules)
	}
	next.drop(acceptPlan(next))
	if got := places(next); !slices.Equal(got, before) {
		t.Fatalf("after adding the chain and removing it the rules are\n%+v, want\n%+v", got, before)
	}
	again, hooksAgain, underflowAgain := next.next()
	if !bytes.Equal(again, blob) || hooksAgain != hooks || underflowAgain != underflow {
		t.Fatalf("after adding the chain and removing it the table is\n% x, was\n% x", again, blob)
	}
}
