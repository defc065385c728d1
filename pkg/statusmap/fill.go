package statusmap

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Fill is how much of a map is in use.
type Fill struct {
	Map string
	// Entries in use and how many the map may hold. Both are 0 for a map that
	// cannot fill up: of a fixed number of entries, or storage of sockets.
	Entries uint32
	Size    uint32
	// Setting is the field of the configuration that sets Size; "" when it is fixed.
	Setting string
	Memory  uint64 // kernel memory, bytes; the chunks of a growable table included
}

// Fill returns how full each map is, by name. s is a snapshot of the maps. Entries that
// have expired count: they take room.
func (t Table) Fill(s tables.Snapshot) ([]Fill, error) {
	used, err := t.used(s)
	if err != nil {
		return nil, err
	}
	var list []Fill
	for name, kernelMap := range t.maps.All() {
		f := Fill{Map: name, Setting: bpfmap.Setting(name)}
		if f.Memory, err = memory(kernelMap); err != nil {
			return nil, fmt.Errorf("map %s: %w", name, err)
		}
		if entries, ok := used[name]; ok {
			f.Entries, f.Size = entries, t.maps.Capacity(name)
		}
		list = append(list, f)
	}
	return list, nil
}

// Memory returns the kernel memory of all maps, bytes, with those that are not replaced in full yet.
func (t Table) Memory() (total uint64, err error) {
	for name, kernelMap := range t.maps.All() {
		bytes, err := memory(kernelMap)
		if err != nil {
			return 0, fmt.Errorf("map %s: %w", name, err)
		}
		total += bytes
	}
	for _, kernelMap := range t.maps.Replaced() {
		bytes, err := memory(kernelMap)
		if err != nil {
			return 0, fmt.Errorf("former %s: %w", kernelMap, err)
		}
		total += bytes
	}
	return total, nil
}

// counts are how the entries of hashes are counted that no snapshot has.
var counts = map[string]func(*ebpf.Map) (uint32, error){
	bpf.SockMapBlEndpoint:  count[bpf.SockBlEndpointKey, uint32],
	bpf.SockMapBlAffinity:  count[bpf.SockBlAffinityKey, bpf.SockBlAffinityEntry],
	bpf.SockMapBlUdpPeer:   count[bpf.SockBlUdpPeerKey, bpf.SockBlUdpPeerEntry],
	bpf.SockMapBlFlow:      count[bpf.SockBlFlowKey, bpf.SockBlFlowEntry],
	bpf.SockMapBlOverflow:  count[bpf.SockBlFlowKey, bpf.SockBlFlowEntry],
	bpf.SockMapBlClient:    count[bpf.SockBlClientKey, bpf.SockBlAffinityEntry],
	bpf.SockMapBlNewClient: count[bpf.SockBlClientKey, bpf.SockBlAffinityEntry],
}

// used returns the entries in use of the maps that can fill up.
func (t Table) used(s tables.Snapshot) (map[string]uint32, error) {
	services := uint32(len(s.Names))
	used := map[string]uint32{
		bpf.SockMapBlService:     services,
		bpf.SockMapBlServiceName: services,
		bpf.SockMapBlServiceStat: services,
		bpf.SockMapBlBackend:     uint32(len(s.Backends)),
		bpf.SockMapBlSlot:        usedSlots(s),
		bpf.SockMapBlFrontend:    uint32(len(s.Frontends)),
		bpf.SockMapBlSrcrange:    uint32(len(s.SourceRanges)),
		bpf.SockMapBlServiceCidr: uint32(len(s.ServiceCIDRs)),
		bpf.SockMapBlForeign:     uint32(len(s.Foreign)),
		bpf.SockMapBlNodeAddr:    uint32(len(s.NodeAddrs)),
		bpf.SockMapBlNode:        uint32(len(s.Nodes)),
		bpf.SockMapBlNodeName:    uint32(len(s.Nodes)),
		bpf.SockMapBlNodeId:      uint32(len(s.NodeIDs)),
	}
	for name, kernelMap := range t.maps.All() {
		count := counts[name]
		if count == nil {
			continue
		}
		var err error
		if used[name], err = count(kernelMap); err != nil {
			return nil, err
		}
	}
	traffic, err := t.Traffic()
	if traffic != nil {
		used[bpf.SockMapBlTraffic] = uint32(len(traffic.Services) + len(traffic.Backends))
	}
	return used, err
}

// usedSlots counts the blocks that the sets occupy: a set takes the next power of
// two.
func usedSlots(s tables.Snapshot) uint32 {
	var slots uint32
	for _, service := range s.Services {
		for _, set := range []tables.Set{service.Cluster, service.Local} {
			if set.Kind == policy.Backends {
				slots += 1 << bits.Len32(set.Count-1)
			}
		}
	}
	return slots
}

// count returns the number of entries of a hash.
func count[K, V any](kernelMap *ebpf.Map) (uint32, error) {
	entries := uint32(0)
	err := bpfmap.Each(kernelMap, func(*K, *V) { entries++ })
	return entries, err
}

// trieMemory returns the memory of a trie, which takes what its entries take. Before Linux 6.4
// the kernel tells what it would take with all entries that it may have.
func trieMemory(trie *ebpf.Map, told uint64) (uint64, error) {
	entry := uint64(trie.KeySize()+trie.ValueSize()+7) &^ 7
	if told < uint64(trie.MaxEntries())*entry {
		return told, nil
	}
	entries := uint64(0)
	for key, err := trie.NextKeyBytes(nil); key != nil || err != nil; key, err = trie.NextKeyBytes(key) {
		if err != nil {
			return 0, err
		}
		entries++
	}
	return min(told, entries*(trieNode+entry)), nil
}

// trieNode is about what the kernel keeps with an entry of a trie, in bytes.
const trieNode = 64

// memory returns the kernel memory of a map and of its chunks.
func memory(kernelMap *ebpf.Map) (uint64, error) {
	info, err := kernelMap.Info()
	if err != nil {
		return 0, err
	}
	total, _ := info.Memlock()
	switch kernelMap.Type() {
	case ebpf.LPMTrie:
		return trieMemory(kernelMap, total)
	case ebpf.ArrayOfMaps:
	default:
		return total, nil
	}
	for i := range kernelMap.MaxEntries() {
		chunk, err := bpfmap.Chunk(kernelMap, i)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			break
		}
		if err != nil {
			return 0, err
		}
		bytes, err := memory(chunk)
		if err = errors.Join(err, chunk.Close()); err != nil {
			return 0, err
		}
		total += bytes
	}
	return total, nil
}
