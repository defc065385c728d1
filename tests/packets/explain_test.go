package packets_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// asked is a connection of the client outside of the cluster, from a port, and what was said about
// it.
type asked struct {
	name    string
	network string
	port    uint16
	to      netip.AddrPort
	said    *inspect.Explanation
}

// explainTable returns the Services of the table, and some that choose by who asks, with the
// connections to all of them.
func (c *cluster) explainTable() (manifests []string, all []*asked) {
	manifests, rows := c.table()
	for _, r := range rows {
		all = append(all, &asked{name: r.name, network: r.network, to: r.to})
	}
	everywhere := []endpoint{{node: 1, place: "routed"}, {node: 1, place: "bridged"}, {node: 2, place: "routed"}, {node: 2, place: "bridged"}}
	services := []struct{ name, fields, algorithm string }{
		{"sticky", "sessionAffinity: ClientIP,", ""},
		{"inside", `loadBalancerSourceRanges: ["10.1.0.0/30", "fd01::/126"],`, ""},
		{"outside", `loadBalancerSourceRanges: ["10.9.0.0/30", "fd09::/126"],`, ""},
	}
	for _, algorithm := range model.Algorithms() {
		services = append(services, struct{ name, fields, algorithm string }{"by-" + algorithm, "", algorithm})
	}
	for i, s := range services {
		number := 100 + i
		list := c.service(number, s.name, s.fields, everywhere)
		if s.algorithm != "" {
			list[0] = strings.Replace(list[0], "namespace: default}",
				fmt.Sprintf("namespace: default, annotations: {service.beeline.io/algorithm: %q}}", s.algorithm), 1)
		}
		manifests = append(manifests, list...)
		for _, f := range frontends {
			for _, network := range networks {
				for _, wrong := range []int{0, 1} { // port
					to := netip.AddrPortFrom(f.address(number).of(network), uint16(f.port(number)+wrong*700))
					all = append(all, &asked{name: fmt.Sprintf("%s to %s of %s", network, f.name, s.name), network: network, to: to})
				}
			}
		}
	}
	for i, a := range all {
		a.port = uint16(11_000 + i) // below those of askDirectly
	}
	return manifests, all
}

// explainAll asks on node 1.
func (c *cluster) explainAll(t *testing.T, all []*asked) {
	t.Helper()
	c.explaining(t, func(e *inspect.Explainer) error {
		for _, a := range all {
			protocol, err := model.ParseProtocol(strings.ToUpper(a.network[:3]))
			if err != nil {
				return err
			}
			from := netip.AddrPortFrom(clientAddrs.of(a.network), a.port)
			if a.said, err = e.Explain(inspect.ExplainOptions{From: from.String(), To: a.to, Protocol: protocol}); err != nil {
				return fmt.Errorf("%s: %w", a.name, err)
			}
		}
		return nil
	})
}

// explaining runs fn on node 1.
func (c *cluster) explaining(t *testing.T, fn func(*inspect.Explainer) error) {
	t.Helper()
	d, err := inspect.Open(c.nodes[0].BPFFS)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	e := d.Explainer()
	defer e.Close()
	if err := c.nodes[0].Run(func() error { return fn(e) }); err != nil {
		t.Fatal(err)
	}
}

// explainNode asks one question on node 1.
func (c *cluster) explainNode(t *testing.T, o inspect.ExplainOptions) (said *inspect.Explanation) {
	t.Helper()
	c.explaining(t, func(e *inspect.Explainer) (err error) {
		said, err = e.Explain(o)
		return err
	})
	return said
}

// attempt makes the connection and says how it, or the path of its packets, differs from what was said.
func (c *cluster) attempt(a *asked, paths *paths) error {
	if a.said.Verdict == inspect.VerdictNoService {
		return nil // it is the kernel's
	}
	paths.forget()
	s := c.client.Socket(a.network)
	defer s.Close()
	if err := bindPort(s, a.network, a.port); err != nil {
		return err
	}
	if a.said.Verdict == inspect.VerdictDropped {
		if err := c.silentBy(s, c.client, a.network, a.to); !errors.Is(err, lab.ErrNothing) {
			return fmt.Errorf("answered: %w", err)
		}
		return nil
	}
	got, err := askBy(s, a.network, a.to, "x")
	if a.said.Verdict == inspect.VerdictRefused {
		if !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("reached %v, error %v", got, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	return c.ended(a, got, paths)
}

// ended says how the end of a connection that was served differs from what was said.
func (c *cluster) ended(a *asked, got answer, paths *paths) error {
	at := func(b inspect.Backend) string {
		for _, n := range c.nodes {
			for _, place := range []string{"routed", "bridged", "host"} {
				e := endpoint{node: n.index, place: place}
				if c.addrsOf(e).of(a.network) == b.Address {
					return e.server()
				}
			}
		}
		return ""
	}
	if a.said.Certain && at(*a.said.Chosen) != got.name {
		return fmt.Errorf("reached %s", got.name)
	}
	if a.said.Set != "" && !slices.ContainsFunc(a.said.Backends, func(b inspect.ExplainedBackend) bool { return b.Share > 0 && at(b.Backend) == got.name }) {
		return fmt.Errorf("reached %s, which gets nothing", got.name)
	}
	if at(*a.said.Chosen) != got.name {
		return nil
	}
	if a.said.Path.Source != got.client {
		return fmt.Errorf("%s has seen %s", got.name, got.client)
	}
	return paths.compare(a)
}

// silence keeps the kernels from reporting their multicast groups and asking for routers, as they
// do for a while after their devices have come up: the node's programs count such packets, too.
func (c *cluster) silence(t *testing.T) {
	t.Helper()
	lab.Need(t, "nft")
	const rules = `table inet silent {
	chain output {
		type filter hook output priority filter
		icmpv6 type { mld-listener-report, mld2-listener-report, nd-router-solicit } drop
		meta l4proto igmp drop
	}
}
`
	for _, n := range c.namespaces() {
		if _, err := n.Output("nft", rules); err != nil {
			t.Fatal(failure(err))
		}
	}
}

// checkExplained explains the connections, with no agent on node 1, wants all maps to be as they were, and
// makes them. Some of them take each of the paths that are wanted: hook, forwarding and device.
func (c *cluster) checkExplained(t *testing.T, all []*asked, want ...string) {
	t.Helper()
	verdicts := make(map[string]int)
	c.silence(t)
	before := c.nodes[0].Dump()
	c.explainAll(t, all)
	lab.CompareDumps(t, before, c.nodes[0].Dump())
	paths := c.watchPaths(t)
	for _, a := range all {
		verdicts[a.said.Verdict]++
		if err := c.attempt(a, paths); err != nil {
			t.Errorf("%s from port %d: %v, explained as %+v", a.name, a.port, err, a.said.Steps)
		}
	}
	for _, v := range []string{inspect.VerdictServed, inspect.VerdictRefused, inspect.VerdictDropped, inspect.VerdictNoService} {
		if verdicts[v] == 0 {
			t.Errorf("nothing is %s: %v", v, verdicts)
		}
	}
	paths.checkSeen(t, want...)
}

// stop ends the agent of a node, which goes on to serve.
func (a *agent) stop() {
	a.t.Helper()
	a.Signal(unix.SIGTERM)
	if err := a.Wait(); err != nil {
		a.t.Fatal(err)
	}
}

// explainedParts is in how many parts the table is explained. Two or four would keep apart what it has
// in turns.
const explainedParts = 3

// TestExplainPackets: every connection of a client outside of the cluster ends as was explained on
// the node before, its packets are sent on by the hook, device and next hop that were named, and the
// backend sees the source that was named; an explanation stores nothing.
func TestExplainPackets(t *testing.T) {
	t.Parallel()
	for i, mode := range []struct {
		name    string
		flags   []string
		cluster func(*testing.T) *cluster
		want    []string // the paths to backends of the other node, and to pods of this one
	}{
		{"routes", nil, func(t *testing.T) *cluster { return newCluster(t, false) }, []string{"tc snat uplink", "tc none vethrouted", "tc none cni0"}},
		{"overlay", nil, func(t *testing.T) *cluster { return newCluster(t, true) }, []string{"tc snat overlay", "tc none vethrouted", "tc none cni0"}},
		{
			"routes, by XDP", []string{"--xdp", "native"}, func(t *testing.T) *cluster { return newXDPCluster(t, false) },
			[]string{"xdp snat uplink", "tc none vethrouted", "tc none cni0"},
		},
		{
			"masqueradeAll", []string{"--masquerade-all"}, func(t *testing.T) *cluster { return newCluster(t, false) },
			[]string{"tc snat uplink", "tc snat vethrouted", "tc snat cni0"},
		},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, i == 1)
			c := mode.cluster(t)
			manifests, all := c.explainTable()
			c.serve(t, manifests, mode.flags...).stop()
			c.checkExplained(t, tier.Share(t, tier.Part(all, i, explainedParts), 0, 2), append(mode.want, "tc none lo")...)
		})
	}
}

// TestExplainDSR is the same where packets to the other node's backends leave in the tunnel to the
// node that was named.
func TestExplainDSR(t *testing.T) {
	tier.Slow(t, "TestExplainPackets explains packets without a tunnel")
	byTunnels(t, 0, func(t *testing.T, c *cluster, mode tunnelMode) {
		manifests, all := c.explainTable()
		c.serveDSR(t, manifests, "--xdp", mode.xdp).stop()
		hook := map[string]string{"off": "tc", "native": "xdp"}[mode.xdp]
		c.checkExplained(t, tier.Part(all, 1, explainedParts), hook+" dsr uplink", "tc none vethrouted", "tc none cni0", "tc none lo")
	})
}

// TestExplainKept: affinity of an established flow, and a flow that is there, are named.
func TestExplainKept(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	c.serve(t, c.service(1, "sticky", "sessionAffinity: ClientIP,", []endpoint{local, remote}))
	paths := c.watchPaths(t)
	for i, network := range networks {
		to := nodePort(network, 1)
		s := c.client.Socket(network)
		port := uint16(11_000 + i)
		if err := bindPort(s, network, port); err != nil {
			t.Fatal(err)
		}
		got, err := askBy(s, network, to, "x")
		if err != nil {
			t.Fatal(err)
		}
		again := &asked{name: "another connection", network: network, port: port + 100, to: to}
		same := &asked{name: "the same", network: network, port: port, to: to}
		c.explainAll(t, []*asked{again, same})
		if !again.said.Certain || again.said.Affinity == nil || !again.said.Affinity.Used {
			t.Errorf("%s after %s: %+v", network, got.name, again.said.Steps)
		}
		if err := c.attempt(again, paths); err != nil {
			t.Errorf("%s: %v, explained as %+v", network, err, again.said.Steps)
		}
		if same.said.Steps[1].Step != "flow" || same.said.Chosen.Address != again.said.Chosen.Address ||
			!same.said.Certain || same.said.Service == nil || len(same.said.Counters) == 0 {
			t.Errorf("%s of the flow to %s: %+v", network, got.name, same.said.Steps)
		}
		s.Close()
		if network[:3] != "udp" {
			continue // its next packet would be a SYN
		}
		if err := c.attempt(same, paths); err != nil {
			t.Errorf("%s: %v, explained as %+v", network, err, same.said.Steps)
		}
	}
}

// TestExplainFlowOver: a flow is named while its packets go on in it, and what comes after it when it is
// over: its connection is closed, its endpoint serves no more, or its frontend is another Service's.
func TestExplainFlowOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	at := func(e endpoint, names ...string) (manifests []string) {
		for i, name := range names {
			manifests = append(manifests, c.service(i+1, name, "", []endpoint{e})...)
		}
		return manifests
	}
	agent := c.serve(t, at(local, "replaced", "handed-over"))
	var sockets []*lab.Socket
	var all []*asked
	for i, network := range networks {
		for j := range 2 {
			a := &asked{name: network, network: network, port: uint16(11_000 + 2*i + j), to: nodePort(network, j+1)}
			s := c.client.Socket(network)
			err := bindPort(s, network, a.port)
			if err == nil {
				_, err = askBy(s, network, a.to, "x")
			}
			if err != nil {
				t.Fatal(err)
			}
			sockets, all = append(sockets, s), append(all, a)
		}
	}
	is := func(a *asked, e endpoint) bool {
		return a.said.Chosen != nil && a.said.Chosen.Address == c.addrsOf(e).of(a.network)
	}
	other := append(at(remote, "replaced", "next"), c.service(3, "handed-over", "", []endpoint{local})...)
	agent.apply(other...)
	agent.stop()
	paths := c.watchPaths(t)
	c.silence(t)
	before := c.nodes[0].Dump()
	c.explainAll(t, all)
	lab.CompareDumps(t, before, c.nodes[0].Dump())
	for i, a := range all {
		if a.network[:3] == "tcp" && !is(a, local) {
			t.Errorf("%s, open: %+v", a.name, a.said.Steps)
		}
		if err := sockets[i].SetLinger(0); err != nil {
			t.Fatal(err)
		}
		sockets[i].Close()
	}
	for _, a := range all {
		// The programs look whose a frontend is once a second; a reset takes its time.
		lab.Eventually(t, a.name+" is explained as another flow", func() bool {
			c.explainAll(t, []*asked{a})
			return is(a, remote)
		})
		if err := c.attempt(a, paths); err != nil {
			t.Errorf("%s: %v, explained as %+v", a.name, err, a.said.Steps)
		}
	}
}
