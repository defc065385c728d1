package bpfmap

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/tests/bpffs"
)

// small keeps the LRU maps of the tests from taking much memory.
var small = Sizes{
	Frontends: 2000, Services: 3 * 4096, Backends: 3 * 4096, Slots: 3 * 16384,
	Affinity: 1000, UDPPeers: 1000, SourceRanges: 100, Flows: 1000, Clients: 1000,
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes BPF maps")
	}
}

func load(t *testing.T, dir string, sizes Sizes) *Maps {
	t.Helper()
	needRoot(t)
	m, err := Load(dir, sizes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestOtherVersion rejects maps that are not its own, and changes nothing.
func TestOtherVersion(t *testing.T) {
	for name, spec := range map[string]*ebpf.MapSpec{
		"same size":    {Type: ebpf.Hash, KeySize: 24, ValueSize: 8, MaxEntries: small.Frontends},
		"another size": {Type: ebpf.Hash, KeySize: 24, ValueSize: 8, MaxEntries: small.Frontends * 2},
	} {
		t.Run(name, func(t *testing.T) {
			dir := bpffs.New(t)
			other, err := ebpf.NewMap(spec)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			must(t, other.Pin(filepath.Join(dir, bpf.SockMapBlFrontend)))
			m, err := Load(dir, small)
			if err == nil {
				m.Close()
				t.Fatal("taken over")
			}
			for _, part := range []string{"map bl_frontend", "KeySize", "another version"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q lacks %q", err, part)
				}
			}
		})
	}
}

// TestMoreReasons takes over the counters of a version that had fewer.
func TestMoreReasons(t *testing.T) {
	dir := bpffs.New(t)
	specs, err := mapSpecs(small)
	if err != nil {
		t.Fatal(err)
	}
	fewer := specs[bpf.SockMapBlCounter].Copy()
	fewer.MaxEntries -= 2
	cpus := ebpf.MustPossibleCPU()
	former, err := ebpf.NewMap(fewer)
	if err != nil {
		t.Fatal(err)
	}
	defer former.Close()
	must(t, former.Put(uint32(3), slices.Repeat([]uint64{4}, cpus)), former.Pin(filepath.Join(dir, bpf.SockMapBlCounter)))
	count, err := load(t, dir, small).Counter(3)
	if err != nil {
		t.Fatal(err)
	}
	if count != 4*uint64(cpus) {
		t.Errorf("count %d", count)
	}
}

// TestPin: a former flow table stays pinned under its own name until the one that takes its place is,
// so that no agent is ever killed where nothing leads to it. What one that was killed has left beside
// the pins is removed.
func TestPin(t *testing.T) {
	dir := bpffs.New(t)
	first := load(t, dir, small)
	must(t, first.Pin(dir))
	sizes := small
	sizes.Flows *= 2
	m := load(t, dir, sizes)
	own := filepath.Join(dir, PinName(bpf.SockMapBlFlow))
	must(t, m.pinFormer(dir))
	for _, path := range []string{own, formerFlowPin(dir)} {
		if same, err := samePin(path, first.BlFlow); err != nil || !same {
			t.Errorf("%s is a pin of the former flow table: %v, %v", path, same, err)
		}
	}
	must(t, m.Pin(dir))
	if same, err := samePin(own, m.BlFlow); err != nil || !same {
		t.Errorf("%s is a pin of the new flow table: %v, %v", own, same, err)
	}
	want := listPins(t, dir)
	for _, path := range []string{own, formerFlowPin(dir), filepath.Join(dir, PinName(bpf.SockMapBlServiceStat))} {
		left, err := first.BlFlow.Clone()
		must(t, err, left.Pin(path+newSuffix), left.Close())
	}
	must(t, m.Pin(dir))
	if got := listPins(t, dir); !slices.Equal(got, want) {
		t.Errorf("pinned are %q, want %q", got, want)
	}
}
