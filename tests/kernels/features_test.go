package kernels_test

import (
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to load BPF programs")
	}
}

// TestSockAddrHelpers asks for the helpers of the socket programs except
// bpf_set_retval, which [TestConnectHook] calls: the probe of cilium/ebpf v0.22
// gives it an argument that kernel 7.2 refuses.
func TestSockAddrHelpers(t *testing.T) {
	needRoot(t)
	for _, helper := range []asm.BuiltinFunc{
		asm.FnMapLookupElem,
		asm.FnMapUpdateElem,
		asm.FnGetPrandomU32,
		asm.FnGetSocketCookie,
		asm.FnGetNetnsCookie,
		asm.FnKtimeGetCoarseNs,
		asm.FnSkStorageGet,
		asm.FnLoop,
		asm.FnProbeReadKernel,
	} {
		if err := features.HaveProgramHelper(ebpf.CGroupSockAddr, helper); err != nil {
			t.Errorf("%v: %v", helper, err)
		}
	}
}

func TestMapTypes(t *testing.T) {
	needRoot(t)
	for _, kind := range []ebpf.MapType{
		ebpf.Hash,
		ebpf.Array,
		ebpf.PerCPUArray,
		ebpf.ArrayOfMaps,
		ebpf.LRUHash,
		ebpf.LPMTrie,
		ebpf.SkStorage,
		ebpf.RingBuf,
	} {
		if err := features.HaveMapType(kind); err != nil {
			t.Errorf("%v: %v", kind, err)
		}
	}
}

// TestMappedChunk writes a chunk of a growable table through the agent's mapping
// and looks it up the way other readers do, for a chunk added later too.
func TestMappedChunk(t *testing.T) {
	needRoot(t)
	chunk := &ebpf.MapSpec{
		Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 512,
		Flags: features.BPF_F_MMAPABLE,
	}
	outer, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 2, InnerMap: chunk,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer outer.Close()

	for index := range uint32(2) {
		inner, err := ebpf.NewMap(chunk)
		if err != nil {
			t.Fatal(err)
		}
		defer inner.Close()
		if err := outer.Put(index, inner); err != nil {
			t.Fatalf("put chunk %d: %v", index, err)
		}
		memory, err := inner.Memory()
		if err != nil {
			t.Fatalf("map chunk %d into memory: %v", index, err)
		}
		if _, err := memory.WriteAt([]byte{byte(index) + 1}, 8*7); err != nil {
			t.Fatal(err)
		}
		var id ebpf.MapID
		if err := outer.Lookup(index, &id); err != nil {
			t.Fatal(err)
		}
		found, err := ebpf.NewMapFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		defer found.Close()
		var value uint64
		if err := found.Lookup(uint32(7), &value); err != nil {
			t.Fatal(err)
		}
		if want := uint64(index) + 1; value != want {
			t.Errorf("chunk %d: looked up %d, want %d", index, value, want)
		}
	}
}

// TestKernelTypes looks for the fields that the programs read of the kernel's own
// structures; see bpf/include/beeline/source.h.
func TestKernelTypes(t *testing.T) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	for name, fields := range map[string][]string{
		"net":          {"dev_base_head"},
		"net_device":   {"dev_list", "ip_ptr", "ip6_ptr"},
		"in_device":    {"ifa_list"},
		"in_ifaddr":    {"ifa_next", "ifa_local"},
		"inet6_dev":    {"addr_list"},
		"inet6_ifaddr": {"addr", "if_list"},
		"sock_common":  {"skc_net"},
	} {
		var kind *btf.Struct
		if err := kernel.TypeByName(name, &kind); err != nil {
			t.Errorf("struct %s: %v", name, err)
			continue
		}
		known := map[string]bool{}
		addMembers(known, kind.Members)
		for _, field := range fields {
			if !known[field] {
				t.Errorf("struct %s has no field %s", name, field)
			}
		}
	}
}

// addMembers adds the names of members and of those in unnamed structures.
func addMembers(known map[string]bool, members []btf.Member) {
	for _, m := range members {
		known[m.Name] = true
		if m.Name != "" {
			continue
		}
		switch inner := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			addMembers(known, inner.Members)
		case *btf.Union:
			addMembers(known, inner.Members)
		}
	}
}
