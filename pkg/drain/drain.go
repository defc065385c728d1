// Package drain hands a node over to another service proxy without breaking connections.
//
// At first other nodes are given the time to notice that this one no longer accepts tunnel
// traffic, if there is a tunnel, and kube-proxy to make its rules for both IP families. From
// then on no new connection is Beeline's: the tables hold no frontend, so new connections
// pass to the other proxy. The packets of known flows are translated as before, and netfilter's SNAT is kept from their source ports, until the last
// of them has ended; then everything is removed.
// Sockets need no translation once they are connected and are not waited for. Those of UDP are destroyed, so that their
// processes connect by the other proxy.
package drain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/flow"
	"github.com/beeline-lb/beeline/pkg/kubeproxy"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tunnel"
)

// Options configure a drain.
type Options struct {
	// BPFFS is where the agent pinned its maps; see [datapath.Options].
	BPFFS    string
	Timeouts flow.Timeouts
	// Waiting is called every few seconds with the number of flows that are not
	// over yet.
	Waiting func(flows int)
}

// Run returns when all is removed, with the paths that are gone. The other proxy has
// to serve already, and the agent must have ended; else the error is a
// [datapath.RunningError]. When ctx ends first, known flows are still served and Run
// can be called again.
func Run(ctx context.Context, o Options) (removed []string, err error) {
	held, err := datapath.Hold(o.BPFFS)
	if errors.Is(err, os.ErrNotExist) {
		return datapath.Cleanup(ctx, o.BPFFS)
	}
	if err != nil {
		return nil, err
	}
	sockets := openSockets(held.Maps)
	if err := handOver(ctx, held.Maps, o, sockets); err != nil {
		return nil, errors.Join(err, sockets.close(), held.Close())
	}
	if err := held.Close(); err != nil {
		return nil, errors.Join(err, sockets.close())
	}
	return sockets.cleanup(ctx, o.BPFFS)
}

// handOver leaves new connections to the other proxy and returns when no known flow is left.
func handOver(ctx context.Context, maps *bpfmap.Maps, o Options, sockets udpSockets) error {
	if err := leaveTunnel(ctx, maps); err != nil {
		return fmt.Errorf("wait for other nodes to leave the tunnel: %w", err)
	}
	if err := awaitProxy(ctx, maps); err != nil {
		return fmt.Errorf("wait for kube-proxy: %w", err)
	}
	open := ports{maps: maps}
	open.reserve()
	if err := servicemap.New(maps).ForgetFrontends(); err != nil {
		return fmt.Errorf("leave new connections to others: %w", err)
	}
	sockets.destroy(ctx)
	flows := flow.New(flow.Options{
		Maps:     maps,
		Timeouts: o.Timeouts,
		Walked: func(w flow.Walk) {
			open.renew() // those, too, that began before the frontends were gone
			o.Waiting(w.Flows - w.Expired)
		},
	})
	if err := flows.Drain(ctx); err != nil {
		return fmt.Errorf("wait for connections to end: %w", err)
	}
	return nil
}

const (
	// syncTimeout is how long kube-proxy gets to make the rules of the second IP family.
	syncTimeout = 30 * time.Second
	syncPeriod  = 500 * time.Millisecond
)

// awaitProxy returns when kube-proxy, if it has rules, has them for both IP families that
// Services have: it is ready before it has.
func awaitProxy(ctx context.Context, maps *bpfmap.Maps) error {
	wanted, err := servicemap.New(maps).Families()
	if err != nil || wanted != [2]bool{true, true} {
		return err
	}
	said := false
	for end := time.Now().Add(syncTimeout); ; {
		has, err := kubeproxy.Families()
		if err != nil {
			klog.ErrorS(err, "The rules of kube-proxy could not be read: whether it serves is not known")
			return nil
		}
		if has[0] == has[1] {
			return nil
		}
		missing := "IPv6"
		if has[1] {
			missing = "IPv4"
		}
		if time.Now().After(end) {
			klog.InfoS("kube-proxy has made no rules of an IP family, which is left to it nevertheless", "family", missing, "after", syncTimeout)
			return nil
		}
		if !said {
			klog.InfoS("Waiting for kube-proxy to make its rules", "family", missing)
			said = true
		}
		if !pause.For(ctx, syncPeriod) {
			return ctx.Err()
		}
	}
}

// leaveTunnel returns when no other node begins connections by the tunnel to this one, whose
// agent answers none.
func leaveTunnel(ctx context.Context, maps *bpfmap.Maps) error {
	nodes, err := nodemap.New(maps).List()
	if err != nil || statusmap.New(maps).Agent().TunnelPort == 0 {
		return err
	}
	if slices.ContainsFunc(nodes, func(n nodemap.Node) bool { return !n.Self }) {
		pause.For(ctx, tunnel.UnreachableAfter)
	}
	return ctx.Err()
}
