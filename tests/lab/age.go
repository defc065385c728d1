package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/beeline-lb/beeline/pkg/datapath"
)

// AgeAffinity makes all session affinity of the host older.
func (h *Host) AgeAffinity(by time.Duration) {
	h.t.Helper()
	if err := h.age("bl_affinity", "bl_affinity_entry", by); err != nil {
		h.t.Fatal(err)
	}
}

// AgeUDPPeers makes what is remembered of UDP sockets older.
func (h *Host) AgeUDPPeers(by time.Duration) {
	h.t.Helper()
	aged := h.changePlaces("last_used", func(place []byte) {
		binary.NativeEndian.PutUint64(place, binary.NativeEndian.Uint64(place)-uint64(by))
	})
	err := h.age("bl_udp_peer", "bl_udp_peer_entry", by)
	if err != nil && (aged == 0 || !errors.Is(err, errNothingToAge)) {
		h.t.Fatal(err)
	}
}

var errNothingToAge = errors.New("no entries to make older")

// age moves the time stamp last_used of every entry of a map back.
func (h *Host) age(name, entry string, by time.Duration) error {
	m, err := ebpf.LoadPinnedMap(filepath.Join(datapath.Dir(h.BPFFS), name), nil)
	if err != nil {
		return err
	}
	defer m.Close()
	at, err := memberOffset(m, entry, "last_used")
	if err != nil {
		return fmt.Errorf("map %s: %w", name, err)
	}
	var key, value []byte
	aged := make(map[string][]byte)
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		stamp := binary.NativeEndian.Uint64(value[at:])
		binary.NativeEndian.PutUint64(value[at:], stamp-uint64(by))
		aged[string(key)] = append([]byte(nil), value...)
	}
	if len(aged) == 0 {
		return fmt.Errorf("map %s: %w", name, errNothingToAge)
	}
	errs := []error{entries.Err()}
	for key, value := range aged {
		errs = append(errs, m.Update([]byte(key), value, ebpf.UpdateExist))
	}
	return errors.Join(errs...)
}

// memberOffset returns where in a map's entry a member is, in bytes.
func memberOffset(m *ebpf.Map, entry, name string) (uint32, error) {
	info, err := m.Info()
	if err != nil {
		return 0, err
	}
	id, ok := info.BTFID()
	if !ok {
		return 0, errors.New("the map has no BTF")
	}
	handle, err := btf.NewHandleFromID(id)
	if err != nil {
		return 0, err
	}
	defer handle.Close()
	types, err := handle.Spec(nil)
	if err != nil {
		return 0, err
	}
	var kind *btf.Struct
	if err := types.TypeByName(entry, &kind); err != nil {
		return 0, err
	}
	for _, member := range kind.Members {
		if member.Name == name {
			return member.Offset.Bytes(), nil
		}
	}
	return 0, fmt.Errorf("struct %s has no %s", entry, name)
}
