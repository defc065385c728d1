package kubeproxy

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// xtBlob returns a table of IPv4 with a hook that jumps to the chain "mine".
func xtBlob() []byte {
	entry := func(target string, payload []byte) []byte {
		size := xtLayout4.header + xtHeaderSize + len(payload)
		e := make([]byte, size)
		binary.NativeEndian.PutUint16(e[xtLayout4.targetOffset:], uint16(xtLayout4.header))
		binary.NativeEndian.PutUint16(e[xtLayout4.targetOffset+2:], uint16(size))
		binary.NativeEndian.PutUint16(e[xtLayout4.header:], uint16(size-xtLayout4.header))
		copy(e[xtLayout4.header+2:], target)
		copy(e[xtLayout4.header+xtHeaderSize:], payload)
		return e
	}
	verdict := func(v int32) []byte {
		return binary.NativeEndian.AppendUint32(nil, uint32(v))
	}
	name := func(s string) []byte { return append([]byte(s), make([]byte, 32-len(s))...) }
	standard := len(entry("", verdict(0)))
	head := len(entry(xtErrorTarget, name("")))
	var blob []byte
	blob = append(blob, entry("", verdict(int32(2*standard+head)))...)
	blob = append(blob, entry("", verdict(-2))...)
	blob = append(blob, entry(xtErrorTarget, name("mine"))...)
	blob = append(blob, entry("", verdict(-5))...)
	return append(blob, entry(xtErrorTarget, name("ERROR"))...)
}

// TestXTables: chains and jumps are found, and a table from which nothing is dropped
// stays the same.
func TestXTables(t *testing.T) {
	blob := xtBlob()
	table := &xtTable{tableName: "filter", layout: xtLayout4, validHooks: 1 << 1}
	if err := table.parse(blob); err != nil {
		t.Fatal(err)
	}
	if len(table.names) != 2 || table.names[0] != "INPUT" || table.names[1] != "mine" {
		t.Errorf("chains %q", table.names)
	}
	if rules, _ := table.rules("INPUT"); len(rules) != 2 || rules[0].target != "mine" || rules[1].target != "" {
		t.Errorf("rules of INPUT %+v", rules)
	}
	if next, _, _ := table.next(); !bytes.Equal(next, blob) {
		t.Error("the next table differs")
	}
	table.drop(plan{links: []link{{"INPUT", 0}}, chains: []string{"mine"}})
	next, _, underflow := table.next()
	if want := len(blob) / 2; table.remaining() != 2 || len(next) > want || underflow[1] != 0 {
		t.Errorf("%d entries, %d bytes, policy at %d after dropping", table.remaining(), len(next), underflow[1])
	}
}
