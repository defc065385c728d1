package lab

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
)

// Dump returns the bytes of every pinned map but those of the names left out, by the pin's name, its
// id in the kernel and the key. What sockets store and what is under way to the
// agent in a ring buffer are not among them.
func (h *Host) Dump(leftOut ...string) map[string]string {
	h.t.Helper()
	pins, err := os.ReadDir(datapath.Dir(h.BPFFS))
	if err != nil {
		h.t.Fatal(err)
	}
	entries := make(map[string]string)
	for _, pin := range pins {
		isPin := func(name string) bool { return pin.Name() == bpfmap.PinName(name) }
		if strings.HasPrefix(pin.Name(), "link_") || slices.ContainsFunc(leftOut, isPin) {
			continue
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(datapath.Dir(h.BPFFS), pin.Name()), nil)
		if err != nil {
			h.t.Fatal(err)
		}
		err = dumpMap(entries, pin.Name(), m)
		if err := errors.Join(err, m.Close()); err != nil {
			h.t.Fatalf("%s: %v", pin.Name(), err)
		}
	}
	if len(entries) == 0 {
		h.t.Fatal("no map has an entry")
	}
	return entries
}

func dumpMap(entries map[string]string, name string, m *ebpf.Map) error {
	info, err := m.Info()
	if err != nil {
		return err
	}
	id, _ := info.ID()
	prefix := fmt.Sprintf("%s id %d", name, id)
	all := m.Iterate()
	var key, value []byte
	var perCPU [][]byte
	switch m.Type() {
	case ebpf.SkStorage, ebpf.RingBuf:
		return nil
	case ebpf.ArrayOfMaps:
		return dumpChunks(entries, prefix, m)
	case ebpf.PerCPUArray, ebpf.PerCPUHash:
		for all.Next(&key, &perCPU) {
			entries[fmt.Sprintf("%s key %x", prefix, key)] = fmt.Sprintf("%x", perCPU)
		}
	default:
		for all.Next(&key, &value) {
			entries[fmt.Sprintf("%s key %x", prefix, key)] = fmt.Sprintf("%x", value)
		}
	}
	return all.Err()
}

func dumpChunks(entries map[string]string, prefix string, outer *ebpf.Map) error {
	for i := range outer.MaxEntries() {
		var chunk *ebpf.Map
		err := outer.Lookup(i, &chunk)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		err = dumpMap(entries, fmt.Sprintf("%s chunk %d", prefix, i), chunk)
		if err := errors.Join(err, chunk.Close()); err != nil {
			return err
		}
	}
	return nil
}

// CompareDumps fails for every entry that differs.
func CompareDumps(t *testing.T, before, after map[string]string) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if after[key] != before[key] {
			t.Errorf("%s: %q became %q", key, before[key], after[key])
		}
		delete(after, key)
	}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		t.Errorf("%s: new: %q", key, after[key])
	}
}
