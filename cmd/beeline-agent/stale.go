package main

import (
	"context"
	"net/netip"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/conntrack"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/pkg/tables"
)

const (
	// stalePeriod is how often stale connections are looked for when no endpoint has gone: rules of a
	// stopped kube-proxy go on to make such.
	stalePeriod = time.Minute
	// stalePause is the shortest time between two looks, staleShare how much longer than a look the pause
	// after it is.
	stalePause, staleShare = time.Second, 50
)

// wakeUDP says that endpoints of UDP have gone, or frontends of UDP lead to other Services.
func (a *agent) wakeUDP() {
	a.destroyer.Wake()
	select {
	case a.udpLeft <- struct{}{}:
	default:
	}
}

// endStale ends UDP connections that netfilter, by rules of kube-proxy, translates from a frontend to an
// endpoint that does not serve it any more, until ctx ends: no program meets their packets before netfilter
// does, and each datagram keeps them. The next one leaves with the frontend's address.
func (a *agent) endStale(ctx context.Context) {
	logged := false
	for wait := time.Duration(0); pause.For(ctx, wait); {
		took := pause.Work(func() {
			if some, err := conntrack.ThisHost.Tracks(); err == nil && !some {
				return
			}
			n, err := conntrack.DeleteStale(a.stale)
			if n > 0 {
				klog.InfoS("Ended UDP connections that netfilter led to endpoints that are gone", "connections", n)
			}
			if err != nil && !logged {
				klog.ErrorS(err, "UDP connections that kube-proxy has set up may keep endpoints that are gone")
			}
			logged = err != nil
		})
		wait = max(stalePause, staleShare*took)
		select {
		case <-ctx.Done():
		case <-a.udpLeft:
		case <-time.After(stalePeriod):
		}
	}
}

// stale reports whether a frontend leads to a Service that an endpoint does not serve.
func (a *agent) stale(to, endpoint netip.AddrPort) bool {
	frontend, found, err := a.datapath.Services().FrontendAt(tables.FrontendKey{Addr: to.Addr(), Port: to.Port(), Protocol: model.UDP})
	return err == nil && found && !a.serves(frontend.Service, endpoint)
}
