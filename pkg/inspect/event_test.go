package inspect

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/bpffs"
	"github.com/beeline-lb/beeline/tests/maptest"
	"github.com/beeline-lb/beeline/tests/wait"
)

// TestMonitorReleasesMaps: who listens keeps no flow table in the kernel that another one has replaced.
func TestMonitorReleasesMaps(t *testing.T) {
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	root := bpffs.New(t)
	dir := datapath.Dir(root)
	check(os.MkdirAll(dir, 0o700))
	first := maptest.Load(t, dir, maptest.Small)
	check(first.Pin(dir))
	m, err := Listen(root, EventOptions{})
	check(err)
	defer func() { check(m.Close()) }()

	sizes := maptest.Small
	sizes.Flows *= 2
	second := maptest.Load(t, dir, sizes)
	check(second.Pin(dir))
	flows := idOf(t, first)
	check(first.Close())
	check(m.renew())
	if former := m.names.maps.FormerFlow(); former == nil {
		t.Fatal("flows of the former table are not read")
	}
	_, err = second.Move()
	check(err)
	check(second.Pin(dir))
	check(m.renew())
	wait.Until(t, "the former flow table is gone", func() bool {
		left, err := ebpf.NewMapFromID(flows)
		if err == nil {
			check(left.Close())
		} else if !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return err != nil
	})
	if e, err := m.LeftOut(); e != nil || err != nil {
		t.Errorf("left out: %+v, %v", e, err)
	}
}

// idOf returns the id of the flow table.
func idOf(t *testing.T, m *bpfmap.Maps) ebpf.MapID {
	t.Helper()
	info, err := m.BlFlow.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}
