package agent_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/lab"
)

// changing are the maps that traffic or the agent's life writes.
var changing = []string{"bl_agent", "bl_counter", "bl_service_stat", "bl_affinity", "bl_udp_peer", "bl_udp_sock", "bl_sock", "bl_tracking", "bl_config", "bl_nat_seen"}

// dump returns the bytes of every pinned map that only Services change, by the
// map's name, its id in the kernel and the key.
func dump(t *testing.T, h *lab.Host) map[string]string {
	t.Helper()
	pins, err := os.ReadDir(datapath.Dir(h.BPFFS))
	if err != nil {
		t.Fatal(err)
	}
	entries := make(map[string]string)
	for _, pin := range pins {
		if strings.HasPrefix(pin.Name(), "link_") || slices.Contains(changing, pin.Name()) {
			continue
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(datapath.Dir(h.BPFFS), pin.Name()), nil)
		if err != nil {
			t.Fatal(err)
		}
		err = dumpMap(entries, pin.Name(), m)
		if err := errors.Join(err, m.Close()); err != nil {
			t.Fatalf("%s: %v", pin.Name(), err)
		}
	}
	if len(entries) == 0 {
		t.Fatal("no map has an entry")
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
	if m.Type() == ebpf.ArrayOfMaps {
		return dumpChunks(entries, prefix, m)
	}
	var key, value []byte
	all := m.Iterate()
	for all.Next(&key, &value) {
		entries[fmt.Sprintf("%s key %x", prefix, key)] = fmt.Sprintf("%x", value)
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

// compare fails for every entry that differs.
func compare(t *testing.T, before, after map[string]string) {
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

// frontends returns the addresses and ports that are served.
func frontends(t *testing.T, h *lab.Host) map[netip.AddrPort]bool {
	t.Helper()
	m, err := bpfmap.Open(datapath.Dir(h.BPFFS))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	snapshot, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	served := make(map[netip.AddrPort]bool)
	for key := range snapshot.Frontends {
		if key.Port != 0 {
			served[netip.AddrPortFrom(key.Addr, key.Port)] = true
		}
	}
	return served
}
