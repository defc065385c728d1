package lab

import (
	"encoding/binary"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/datapath"
)

// udpPlace is an entry of bl_udp_sock.
type udpPlace [64]byte

// TakeUDPPlaces gives every free place of UDP sockets to a socket that never ends: new
// sockets have to do without.
func (h *Host) TakeUDPPlaces() {
	h.t.Helper()
	m, places := h.places()
	defer m.Close()
	owner := h.placeMember(m, "owner")
	for i, p := range places {
		if binary.NativeEndian.Uint32(p[owner:]) == 0 {
			binary.NativeEndian.PutUint32(p[owner:], 1<<32-1)
			h.putPlace(m, i, p)
		}
	}
}

// UDPPlaces returns how many places of UDP sockets are taken.
func (h *Host) UDPPlaces() int { return h.changePlaces("owner", func([]byte) {}) }

// changePlaces calls change with each place of a UDP socket, from a member on, stores what
// it makes of it, and returns how many there are.
func (h *Host) changePlaces(member string, change func(from []byte)) int {
	h.t.Helper()
	m, places := h.places()
	defer m.Close()
	owner, at := h.placeMember(m, "owner"), h.placeMember(m, member)
	taken := 0
	for i, p := range places {
		if binary.NativeEndian.Uint32(p[owner:]) == 0 {
			continue
		}
		taken++
		before := p
		if change(p[at:]); p != before {
			h.putPlace(m, i, p)
		}
	}
	return taken
}

func (h *Host) places() (*ebpf.Map, []udpPlace) {
	h.t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(datapath.Dir(h.BPFFS), "bl_udp_sock"), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	indexes, places := make([]uint32, m.MaxEntries()), make([]udpPlace, m.MaxEntries())
	n, err := m.BatchLookup(new(ebpf.MapBatchCursor), indexes, places, nil)
	if n != len(places) {
		m.Close()
		h.t.Fatalf("%d places of UDP sockets, want %d: %v", n, len(places), err)
	}
	return m, places
}

func (h *Host) placeMember(m *ebpf.Map, name string) uint32 {
	h.t.Helper()
	at, err := memberOffset(m, "bl_sock_entry", name)
	if err != nil {
		h.t.Fatal(err)
	}
	return at
}

func (h *Host) putPlace(m *ebpf.Map, index int, p udpPlace) {
	h.t.Helper()
	if err := m.Put(uint32(index), p); err != nil {
		h.t.Fatal(err)
	}
}
