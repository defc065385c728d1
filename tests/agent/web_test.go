package agent_test

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/lab"
)

// TestWebPageListens: the agent's web page listens to what is refused once somebody has looked, and
// gives its place back when the agent ends.
func TestWebPageListens(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	s := h.NewStandalone(web, webSlice)
	s.Start("--web-bind-address", "127.0.0.1")
	maps, err := bpfmap.Open(datapath.Dir(h.BPFFS))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { maps.Close() })
	listening := func() uint64 { return atomic.LoadUint64(&maps.Entries.Monitor.Listening) }
	if listening() != 0 {
		t.Error("the agent listens before somebody looks")
	}
	refused := netip.AddrPortFrom(webTCP.Addr(), 81)
	lab.Eventually(t, "the page shows who was refused", func() bool {
		if !fails(h, refused, unix.ECONNREFUSED)() {
			t.Errorf("%s is not refused", refused)
		}
		page, err := h.Get("http://127.0.0.1:10245/top")
		if err != nil {
			t.Error(err)
		}
		return strings.Contains(page, `"serviceAddress":"`+refused.String()+`"`) && strings.Contains(page, `"reason":"undeclared_port"`)
	})
	s.Signal(unix.SIGTERM)
	if err := s.Wait(); err != nil {
		t.Fatal(err)
	}
	if listening() != 0 {
		t.Error("the agent has ended and listens")
	}
}
