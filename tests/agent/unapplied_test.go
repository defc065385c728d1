package agent_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// TestUnapplied: why a Service is not served in full can be read from the maps, also while the
// agent is down, and no more once it is served.
func TestUnapplied(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	h.ServeBackends()
	s := h.NewStandalone(web, webSlice)
	s.Start("--max-frontends", "256")
	wantUnapplied(t, h)

	empty := fillFrontends(t, h)
	s.Write("second.yaml", sticky, stickySlice)
	wantUnapplied(t, h, "sticky")
	s.Signal(unix.SIGTERM)
	_ = s.Wait()
	wantUnapplied(t, h, "sticky")

	empty()
	s.Start("--max-frontends", "256")
	wantUnapplied(t, h)
	mustReach(t, h, "tcp4", stickyTCP)
}

// fillFrontends takes all room that is left in the map of frontends, by those of addresses that
// nobody asks for, until the returned function is called.
func fillFrontends(t *testing.T, h *lab.Host) (empty func()) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(datapath.Dir(h.BPFFS), "bl_frontend"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	copy(key, netip.MustParseAddr("2001:db8::").AsSlice())
	put := uint32(0)
	set := func(i uint32) []byte {
		binary.BigEndian.PutUint32(key[12:], i)
		return key
	}
	for ; ; put++ {
		if err = m.Put(set(put), value); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.E2BIG) || put == 0 {
		t.Fatalf("after %d more frontends: %v", put, err)
	}
	return func() {
		t.Helper()
		for i := range put {
			if err := m.Delete(set(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// wantUnapplied waits until these Services, of the default namespace, are shown as not applied,
// each with its error.
func wantUnapplied(t *testing.T, h *lab.Host, names ...string) {
	t.Helper()
	var list []statusmap.Unapplied
	lab.Eventually(t, "the Services that are not served in full are shown", func() bool {
		maps, err := bpfmap.Open(datapath.Dir(h.BPFFS))
		if err != nil {
			t.Fatal(err)
		}
		list, err = statusmap.New(maps).Unapplied()
		if err := errors.Join(err, maps.Close()); err != nil {
			t.Fatal(err)
		}
		return len(list) == len(names)
	})
	for i, u := range list {
		if want := (model.Name{Namespace: "default", Name: names[i]}); u.Service != want {
			t.Errorf("%s is shown, want %s", u.Service, want)
		}
		if u.Error == "" || u.Tries == 0 || !u.Next.After(u.Since) {
			t.Errorf("%+v", u)
		}
	}
}
