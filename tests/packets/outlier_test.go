package packets_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// deaf are the ways in which an endpoint does not serve, as a rule of its own network namespace.
var deaf = map[string]string{"refuses": "reject with tcp reset", "is silent": "drop"}

// setDeaf has an endpoint not serve a network, by a rule for new connections; "" lets it.
func (c *cluster) setDeaf(t *testing.T, e endpoint, network, rule string) {
	t.Helper()
	c.setDeafTo(t, e, network, "tcp flags & (syn|ack) == syn", rule)
}

// setDeafTo is the same for packets that match.
func (c *cluster) setDeafTo(t *testing.T, e endpoint, network, match, rule string) {
	t.Helper()
	family := map[string]string{"tcp4": "ip", "tcp6": "ip6"}[network]
	script := fmt.Sprintf("add table %[1]s deaf\ndelete table %[1]s deaf\n", family)
	if rule != "" {
		script += fmt.Sprintf("table %s deaf {\nchain input {\ntype filter hook input priority 0\ntcp dport %d %s %s\n}\n}\n", family, backendPort, match, rule)
	}
	if _, err := c.podOf(e).Output("nft", script); err != nil {
		t.Fatal(failure(err))
	}
}

// dial makes a connection, until ctx ends, and returns who has answered. Calls of a namespace do not
// wait for each other.
func dial(ctx context.Context, n *lab.Namespace, network string, to netip.AddrPort) (string, error) {
	var name string
	err := n.Thread(func() error {
		conn, err := new(net.Dialer).DialContext(ctx, network, to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(wait.Limit)); err != nil {
			return err
		}
		buf := make([]byte, 256)
		size, err := conn.Read(buf)
		name, _, _ = strings.Cut(string(buf[:size]), " ")
		return err
	})
	return name, err
}

// dials are connections that are made at the same time, and how they have ended. Those that are given up
// count as neither.
type dials struct {
	giveUp           context.CancelFunc
	made             sync.WaitGroup
	answered, failed atomic.Int32
}

// startDials begins n times to make connections, each time one after the other for as long as more
// returns true.
func startDials(t *testing.T, n int, from *lab.Namespace, network string, to netip.AddrPort, more func() bool) *dials {
	ctx, giveUp := context.WithCancel(t.Context())
	d := &dials{giveUp: giveUp}
	t.Cleanup(d.end)
	for range n {
		d.made.Go(func() {
			for again := true; again && ctx.Err() == nil; again = more() {
				switch _, err := dial(ctx, from, network, to); {
				case err == nil:
					d.answered.Add(1)
				case ctx.Err() == nil:
					d.failed.Add(1)
				}
			}
		})
	}
	return d
}

// end gives up the connections that are being made.
func (d *dials) end() {
	d.giveUp()
	d.made.Wait()
}

// outlierOf returns what outlier detection on node 1 knows of an endpoint of the Service web.
func (c *cluster) outlierOf(t *testing.T, e endpoint, network string) inspect.Outlier {
	t.Helper()
	d, err := inspect.Open(c.nodes[0].BPFFS)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	services, err := d.Services()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range services {
		for _, p := range s.Ports {
			for _, b := range p.Backends {
				if b.Address == c.addrsOf(e).of(network) && b.Outlier != nil {
					return *b.Outlier
				}
			}
		}
	}
	t.Fatalf("nothing is known of %s", e.server())
	return inspect.Outlier{}
}

// TestOutliers: an endpoint that refuses connections, or is silent, is ejected after the failures that
// the setting names, whoever has made the connections. Then nobody reaches it until its time is over;
// of all connections that are then made at once one does, by which it is ejected again, until it serves.
func TestOutliers(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft")
	const failures = 3
	for name, v := range map[string]struct {
		flags  []string
		socket bool
	}{
		"sockets":    {nil, true},
		"packets":    {nil, false},
		"XDP":        {[]string{"--xdp", "generic"}, false},
		"no forward": {[]string{"--masquerade-all"}, false},
	} {
		for how, rule := range deaf {
			if how == "is silent" && name != "sockets" && name != "packets" {
				continue // as packets
			}
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				tier.Variant(t, how == "refuses" && (name == "sockets" || name == "packets"))
				everywhere := []endpoint{local, otherLocal, remote, otherRemote}
				c, _ := serveCluster(t, func(c *cluster) []string { return c.service(1, "web", "", everywhere) },
					append(v.flags, "--outlier-detection", fmt.Sprintf("failures=%d,time=5s", failures))...)
				told := listen(t, c.nodes[0], inspect.EventOptions{Rate: 10_000, Kinds: []string{inspect.EventEjected, inspect.EventAdmitted}})
				from, to := c.client, func(network string) netip.AddrPort { return nodePort(network, 1) }
				if v.socket {
					from = c.nodes[0].Namespace
					to = func(network string) netip.AddrPort { return netip.AddrPortFrom(clusterIP(1).of(network), 80) }
				}
				for i, network := range networks[:2] {
					t.Run(network, func(t *testing.T) {
						t.Parallel()
						bad, to := everywhere[2*i+1], to(network)
						c.setDeaf(t, bad, network, rule)
						c.wantFailures(t, from, network, to, bad, how, failures)
						c.wantEjected(t, network, bad)
						c.wantOthers(t, from, network, to, bad)
						c.wantOneTried(t, from, network, to, bad)
						c.setDeaf(t, bad, network, "")
						lab.Eventually(t, bad.server()+" serves again", func() bool {
							got, err := dial(t.Context(), from, network, to)
							if err != nil {
								t.Fatal(err)
							}
							return got == bad.server()
						})
						c.wantTold(t, told, bad, network, failures)
					})
				}
			})
		}
	}
}

// wantFailures makes connections until an endpoint is ejected, which takes so many failures. None is given
// up before: a late answer begins the count of an endpoint anew. Packets go on to a second endpoint.
func (c *cluster) wantFailures(t *testing.T, from *lab.Namespace, network string, to netip.AddrPort, bad endpoint, how string, failures int) {
	t.Helper()
	if how == "is silent" {
		var ejected atomic.Bool
		d := startDials(t, failures, from, network, to, func() bool { return !ejected.Load() })
		lab.Eventually(t, bad.server()+" is ejected", func() bool { return c.outlierOf(t, bad, network).Ejected })
		ejected.Store(true)
		d.end()
		return
	}
	failed := 0
	lab.Eventually(t, bad.server()+" is ejected", func() bool {
		if _, err := dial(t.Context(), from, network, to); err != nil {
			failed++
		}
		return c.outlierOf(t, bad, network).Ejected
	})
	switch {
	case from != c.nodes[0].Namespace:
		if failed > 0 {
			t.Errorf("%s refuses, and %d connections of packets fail before it is ejected", bad.server(), failed)
		}
	case failed < failures:
		t.Errorf("%s is ejected after %d failures", bad.server(), failed)
	}
}

// wantEjected wants it to be explained that an endpoint gets nothing, while it is ejected.
func (c *cluster) wantEjected(t *testing.T, network string, bad endpoint) {
	t.Helper()
	a := &asked{name: network, network: network, port: 11_000, to: nodePort(network, 1)}
	why := ""
	lab.Eventually(t, "it is explained why "+bad.server()+" gets nothing", func() bool {
		c.explainAll(t, []*asked{a})
		for _, b := range a.said.Backends {
			if b.Address == c.addrsOf(bad).of(network) {
				why = b.Why
			}
		}
		return strings.Contains(why, "ejected") || !c.outlierOf(t, bad, network).Ejected
	})
}

// wantOthers wants connections to reach the other endpoints, for as long as one is ejected.
func (c *cluster) wantOthers(t *testing.T, from *lab.Namespace, network string, to netip.AddrPort, ejected endpoint) {
	t.Helper()
	seen := map[string]int{}
	for range 20 {
		type outcome struct {
			name string
			err  error
		}
		ended := make(chan outcome, 1)
		ctx, giveUp := context.WithCancel(t.Context())
		go func() {
			name, err := dial(ctx, from, network, to)
			ended <- outcome{name, err}
		}()
		var got *outcome
		var o inspect.Outlier
		lab.Eventually(t, "a connection ends, or "+ejected.server()+" has been on trial", func() bool {
			select {
			case e := <-ended:
				got = &e
			default:
			}
			o = c.outlierOf(t, ejected, network)
			return got != nil || !o.Ejected || o.Times > 1
		})
		giveUp()
		if !o.Ejected || o.OnTrial || o.Times > 1 {
			break // perhaps before that connection
		}
		if got.err != nil {
			t.Errorf("%s: %v", network, got.err)
		}
		seen[got.name]++
	}
	if seen[ejected.server()] > 0 {
		t.Errorf("%s, with %s ejected: %v", network, ejected.server(), seen)
	}
}

// wantOneTried wants one of many connections at a time to go to an endpoint whose time is over and which
// does not serve, and that to eject it again.
func (c *cluster) wantOneTried(t *testing.T, from *lab.Namespace, network string, to netip.AddrPort, bad endpoint) {
	t.Helper()
	var first inspect.Outlier
	lab.Eventually(t, bad.server()+" is on trial", func() bool {
		first = c.outlierOf(t, bad, network)
		return first.OnTrial
	})
	const all = 40
	d := startDials(t, all, from, network, to, func() bool { return false })
	lab.Eventually(t, bad.server()+" is ejected again", func() bool { return c.outlierOf(t, bad, network).Times > first.Times })
	// A machine that takes longer than the ejection has the next trial meanwhile.
	trials := func() int32 {
		o := c.outlierOf(t, bad, network)
		n := int32(o.Times - first.Times)
		if o.OnTrial {
			n++
		}
		return n
	}
	lab.Eventually(t, "all connections but those on trial are answered", func() bool {
		if failed, n := d.failed.Load(), trials(); failed > n {
			t.Fatalf("%s, %s on trial: %d of %d connections fail in %d trials", network, bad.server(), failed, all, n)
		}
		return d.answered.Load() >= all-trials()
	})
	d.end()
}

// wantTold wants who listens to be told that an endpoint was ejected, again after one failure, and let in.
func (c *cluster) wantTold(t *testing.T, told *listener, bad endpoint, network string, failures uint32) {
	t.Helper()
	about := func(kind string, seconds uint32) func(*inspect.Event) bool {
		return func(e *inspect.Event) bool {
			return e.Kind == kind && e.EjectedSeconds == seconds && e.Backend.Addr() == c.addrsOf(bad).of(network)
		}
	}
	first := told.one(t, bad.server()+" is ejected", about(inspect.EventEjected, 5))
	again := told.one(t, bad.server()+" is ejected again", about(inspect.EventEjected, 10))
	admitted := told.one(t, bad.server()+" is let in", about(inspect.EventAdmitted, 0))
	if first.Failures < failures || again.Failures == 0 || admitted.Service.String() != "default/web:t" || admitted.Hook != "look" {
		t.Errorf("told %+v, %+v and %+v", first, again, admitted)
	}
}

// TestOutliersDSR: a connection that an endpoint on this node refuses, and that then goes by the tunnel to
// one on another node, is established by the client's ACK, as others by the tunnel are.
func TestOutliersDSR(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft")
	c := newCluster(t, false)
	c.serveDSR(t, c.service(1, "web", "", []endpoint{local, remote}), "--outlier-detection", "failures=100")
	for _, network := range networks[:2] {
		c.setDeaf(t, local, network, deaf["refuses"])
		lab.Eventually(t, network+": "+local.server()+" refuses a connection", func() bool {
			before := eventCount(t, c.nodes[0], "reset_held")
			s, hello := connect(t, c.client, network, nodePort(network, 1))
			defer s.Close()
			if hello.name != remote.server() {
				t.Fatalf("%s: %s answers", network, hello.name)
			}
			self, err := s.Local()
			if err != nil {
				t.Fatal(err)
			}
			flows := slices.DeleteFunc(c.flowsOf(t, c.nodes[0]), func(f flowmap.Flow) bool { return f.Client != self })
			if len(flows) != 1 || flows[0].Tunnel != flowmap.LeavesByTunnel || flows[0].State != flowmap.StateEstablished {
				t.Errorf("%s: the connection goes on with the flows %+v", network, flows)
			}
			return eventCount(t, c.nodes[0], "reset_held") != before
		})
	}
}
