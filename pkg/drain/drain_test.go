package drain

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/flow"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/bpffs"
	"github.com/beeline-lb/beeline/tests/maptest"
	"github.com/beeline-lb/beeline/tests/servicetest"
)

// left is what an agent that has ended leaves: one frontend, and nodes.
type left struct {
	bpffs string
	maps  *bpfmap.Maps
}

func leave(t *testing.T, tunnelPort uint16, nodes ...tables.Node) *left {
	t.Helper()
	l := &left{bpffs: bpffs.New(t)}
	if err := os.MkdirAll(datapath.Dir(l.bpffs), 0o700); err != nil {
		t.Fatal(err)
	}
	l.maps = maptest.Load(t, datapath.Dir(l.bpffs), maptest.Small)
	statusmap.New(l.maps).SetAgent(statusmap.Agent{TunnelPort: tunnelPort})
	services := servicetest.Open(t, l.maps)
	errs := []error{
		l.maps.Pin(datapath.Dir(l.bpffs)),
		services.PutFrontend(tables.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: model.TCP},
			tables.Frontend{Service: 1, Kind: tables.FrontendClusterIP}),
	}
	for i, n := range nodes {
		errs = append(errs, services.PutNode(uint16(1+i), n))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return l
}

// frontends returns how many are in the kernel.
func (l *left) frontends(t *testing.T) (n int) {
	t.Helper()
	err := bpfmap.Each(l.maps.BlFrontend, func(*bpf.SockBlFrontendKey, *bpf.SockBlFrontendEntry) { n++ })
	if err != nil {
		t.Error(err)
	}
	return n
}

// start begins a drain, whose end is sent to the channel.
func (l *left) start(ctx context.Context) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := Run(ctx, Options{BPFFS: l.bpffs, Timeouts: flow.DefaultTimeouts, Waiting: func(int) {}})
		ended <- err
	}()
	return ended
}

var (
	self  = tables.Node{Addr: netip.MustParseAddr("192.0.2.1"), Name: "a", Self: true}
	other = tables.Node{Addr: netip.MustParseAddr("192.0.2.2"), Name: "b"}
)

// TestOthersLeaveTheTunnelFirst: where other nodes may use the tunnel to this one, its Services
// are served for 34 s more.
func TestOthersLeaveTheTunnelFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		port  uint16
		nodes []tables.Node
		after time.Duration
	}{
		"another node":  {6091, []tables.Node{self, other}, 34 * time.Second},
		"no other node": {6091, []tables.Node{self}, 0},
		"no node":       {6091, nil, 0},
		"no tunnel":     {0, []tables.Node{self, other}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := leave(t, tt.port, tt.nodes...)
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				ended := l.start(t.Context())
				if tt.after > 0 {
					time.Sleep(tt.after - 1)
					if n := l.frontends(t); n != 1 {
						t.Errorf("%d frontends %v after the start, want 1", n, time.Since(start))
					}
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
				// Searches for sockets rest in proportion to their work.
				if took := time.Since(start) - 2*settle; took < tt.after || took > tt.after+30*time.Second {
					t.Errorf("ended after %v and two searches for sockets, want %v", took, tt.after)
				}
				if n := l.frontends(t); n != 0 {
					t.Errorf("%d frontends are left", n)
				}
			})
		})
	}
}

// TestInterruptedBeforeOthersLeave: nothing has changed when a drain is interrupted while other
// nodes may use the tunnel.
func TestInterruptedBeforeOthersLeave(t *testing.T) {
	l := leave(t, 6091, self, other)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 33*time.Second)
		defer cancel()
		if err := <-l.start(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}
		if n := l.frontends(t); n != 1 {
			t.Errorf("%d frontends, want 1", n)
		}
	})
	held, err := datapath.Hold(l.bpffs)
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Close(); err != nil {
		t.Error(err)
	}
}
