package packets_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// endpoint is one server as a slice has it.
type endpoint struct {
	node        int    // 1 or 2
	place       string // routed, bridged, host
	terminating bool
	gone        bool // terminating, and serves no more
	hint        int  // the node that its topology hint names; 0: it has none
}

func (e endpoint) server() string { return fmt.Sprintf("node%d/%s", e.node, e.place) }

func (c *cluster) addrsOf(e endpoint) addrs {
	n := c.nodes[e.node-1]
	switch e.place {
	case "routed":
		return n.routedAddrs()
	case "bridged":
		return n.bridgedAddrs()
	}
	return nodeAddrs(e.node)
}

// sets are the endpoints of Services, by name.
var sets = []struct {
	name      string
	endpoints []endpoint
}{
	{"routed", []endpoint{{node: 1, place: "routed"}}},
	{"bridged", []endpoint{{node: 1, place: "bridged"}}},
	{"host", []endpoint{{node: 1, place: "host"}}},
	{"remote", []endpoint{{node: 2, place: "routed"}}},
	{"remote-host", []endpoint{{node: 2, place: "host"}}},
	{"both", []endpoint{{node: 1, place: "bridged"}, {node: 2, place: "routed"}}},
	{"terminating", []endpoint{{node: 1, place: "routed", terminating: true}}},
	{"terminating-remote", []endpoint{{node: 2, place: "routed", terminating: true}}},
	{"replaced", []endpoint{{node: 1, place: "routed", terminating: true}, {node: 2, place: "bridged"}}},
	{"none", nil},
}

var networks = []string{"tcp4", "tcp6", "udp4", "udp6"}

// frontends are those of a Service from outside of the cluster, by the number
// of the Service.
var frontends = []struct {
	name    string
	address func(i int) addrs
	port    func(i int) int
}{
	{"ClusterIP", clusterIP, func(int) int { return 80 }},
	{"NodePort", func(int) addrs { return nodeAddrs(1) }, func(i int) int { return 30100 + i }},
	{"external IP", externalIP, func(int) int { return 80 }},
	{"load balancer", balancerIP, func(int) int { return 80 }},
}

func clusterIP(i int) addrs {
	return parseAddrs(fmt.Sprintf("10.96.1.%d", i), fmt.Sprintf("fd96::1%02x", i))
}

func externalIP(i int) addrs {
	return parseAddrs(fmt.Sprintf("198.51.100.%d", i), fmt.Sprintf("fd98::%x", i))
}

func balancerIP(i int) addrs {
	return parseAddrs(fmt.Sprintf("203.0.113.%d", i), fmt.Sprintf("fd97::%x", i))
}

// service returns the manifests of the i-th Service, which has every kind of
// frontend, both families, TCP and UDP. fields are more of the spec.
func (c *cluster) service(i int, name, fields string, endpoints []endpoint) []string {
	cluster, external, balancer := clusterIP(i), externalIP(i), balancerIP(i)
	spec := fmt.Sprintf("{type: LoadBalancer, clusterIPs: [%q, %q], externalIPs: [%q, %q], %s"+
		" ports: [{name: t, port: 80, nodePort: %d}, {name: u, port: 80, protocol: UDP, nodePort: %d}]}",
		cluster[0], cluster[1], external[0], external[1], fields, 30100+i, 30100+i)
	status := fmt.Sprintf("status: {loadBalancer: {ingress: [{ip: %q}, {ip: %q}]}}", balancer[0], balancer[1])
	manifests := []string{lab.Service(name, spec, status)}
	for family := range 2 {
		if slice := c.slice(name, family, endpoints); slice != "" {
			manifests = append(manifests, slice)
		}
	}
	return manifests
}

// slice returns the slice of one family, "" without endpoints.
func (c *cluster) slice(service string, family int, endpoints []endpoint) string {
	var list []string
	for _, e := range endpoints {
		hints := ""
		if e.hint != 0 {
			hints = fmt.Sprintf(", hints: {forNodes: [{name: node%d}]}", e.hint)
		}
		terminating := e.terminating || e.gone
		list = append(list, fmt.Sprintf("{addresses: [%q], nodeName: node%d, conditions: {ready: %t, serving: %t, terminating: %t}%s}",
			c.addrsOf(e)[family], e.node, !terminating, !e.gone, terminating, hints))
	}
	if list == nil {
		return ""
	}
	return lab.SliceOf(service, fmt.Sprintf("t:%d/TCP,u:%d/UDP", backendPort, backendPort), list...)
}

// reach is one row of the table: a client outside of the cluster asks for a
// Service.
type reach struct {
	name    string
	network string
	to      netip.AddrPort
	// may are the endpoints that may answer. With none, the packet is dropped or
	// else refused.
	may     []endpoint
	dropped bool
}

// table returns the Services and all that is to hold for them.
func (c *cluster) table() (manifests []string, rows []reach) {
	i := 0
	for _, set := range sets {
		for _, policy := range []string{"Cluster", "Local"} {
			i++
			manifests = append(manifests, c.service(i, set.name+"-"+strings.ToLower(policy),
				"externalTrafficPolicy: "+policy+",", set.endpoints)...)
			for _, f := range frontends {
				local := policy == "Local" && f.name != "ClusterIP"
				may := usable(set.endpoints, local)
				for _, network := range networks {
					rows = append(rows, reach{
						name:    fmt.Sprintf("%s to %s of %s under %s", network, f.name, set.name, policy),
						network: network,
						to:      netip.AddrPortFrom(f.address(i).of(network), uint16(f.port(i))),
						may:     may,
						dropped: len(may) == 0 && len(set.endpoints) > 0,
					})
				}
			}
		}
	}
	return manifests, rows
}

// usable returns the endpoints that node 1 may choose: those that are ready, or
// when none is those that are terminating.
func usable(endpoints []endpoint, local bool) []endpoint {
	var ready, terminating []endpoint
	for _, e := range endpoints {
		switch {
		case local && e.node != 1:
		case e.terminating:
			terminating = append(terminating, e)
		default:
			ready = append(ready, e)
		}
	}
	if len(ready) > 0 {
		return ready
	}
	return terminating
}

// check asks as the row says and returns what was not as it says.
func (c *cluster) check(r reach) error {
	if r.dropped {
		if err := c.silent(c.client, r.network, r.to); !errors.Is(err, lab.ErrNothing) {
			return fmt.Errorf("answered: %w, want no answer", err)
		}
		return nil
	}
	got, err := ask(c.client, r.network, r.to, "payload of "+r.name)
	if len(r.may) == 0 {
		if !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("reached %v, error %v, want it refused", got, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	return c.checkAnswer(r, got)
}

func (c *cluster) checkAnswer(r reach, got answer) error {
	i := slices.IndexFunc(r.may, func(e endpoint) bool { return e.server() == got.name })
	if i < 0 {
		return fmt.Errorf("reached %s, want one of %v", got.name, r.may)
	}
	return c.checkSource(r.network, r.may[i], got)
}

// maySee reports whether an endpoint may see a client's own port as port: with the client's
// address as it is, unless another flow shows the endpoint that; with the node's, remapped where
// the node's kernel takes ports for its own connections, or another one where somebody has that.
func (c *cluster) maySee(e endpoint, network string, port uint16, client netip.AddrPort, snat bool) bool {
	const first, last = 32768, 60999
	if snat {
		return port == client.Port() || port < first || port > last
	}
	return port == client.Port() || c.knows(e, network, client)
}

// checkSource says what is wrong with the source that an endpoint has seen: the
// address is the client's own on this node or with direct return, else node 1's.
func (c *cluster) checkSource(network string, e endpoint, got answer) error {
	want := got.self.Addr()
	if e.node != 1 && !c.direct {
		want = c.snat(e.place == "host").of(network)
	}
	port := got.client.Port()
	if got.client.Addr() != want || !c.maySee(e, network, port, got.self, want != got.self.Addr()) {
		return fmt.Errorf("%s has seen %s, want %s with a port for %d", got.name, got.client, want, got.self.Port())
	}
	return nil
}

// knows reports whether a flow of some node shows a client to an endpoint by its own address and
// port.
func (c *cluster) knows(e endpoint, network string, client netip.AddrPort) bool {
	backend := netip.AddrPortFrom(c.addrsOf(e).of(network), backendPort)
	for _, n := range c.nodes {
		maps, err := bpfmap.Open(datapath.Dir(n.BPFFS))
		if err != nil {
			continue // a node without an agent
		}
		defer maps.Close()
		for batch, err := range flowmap.New(maps).Batches(bpf.Clock) {
			if err != nil {
				return false
			}
			for _, f := range batch.Flows {
				if f.Source == client && f.Backend == backend && strings.EqualFold(f.Protocol.String(), network[:3]) {
					return true
				}
			}
		}
	}
	return false
}

// checkAll checks every row, some at a time.
func (c *cluster) checkAll(t *testing.T, rows []reach) {
	t.Helper()
	places := make(chan struct{}, 16)
	var running sync.WaitGroup
	for _, r := range rows {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			if err := c.check(r); err != nil {
				t.Errorf("%s: %v", r.name, err)
			}
		})
	}
	running.Wait()
}

// offloads are where packets get their checksums: left to the receiver, made by
// the sender, or made on the way from what the sender left.
var offloads = []struct {
	name string
	set  func(*cluster)
}{
	{"offloads on", func(*cluster) {}},
	{"offloads off", func(c *cluster) {
		for _, n := range c.namespaces() {
			n.SetChecksumOffload(false)
		}
	}},
	{"offloads on behind the router", func(c *cluster) {
		for _, n := range c.namespaces() {
			n.SetChecksumOffload(true)
		}
		c.router.SetChecksumOffload(false, "client", "node2")
	}},
}

// TestReach is the table: each kind of frontend, policy, endpoint, protocol and
// family, by each mode of the programs and each routing to the other node.
func TestReach(t *testing.T) {
	t.Parallel()
	for i, mode := range []string{"tcx", "clsact"} {
		for j, routing := range []string{"routes", "overlay"} {
			t.Run(mode+" over "+routing, func(t *testing.T) {
				t.Parallel()
				tier.Variant(t, i == j)
				c := newCluster(t, routing == "overlay")
				manifests, rows := c.table()
				c.serve(t, manifests, "--tc-mode", mode)
				for k, offload := range offloads {
					t.Run(offload.name, func(t *testing.T) {
						offload.set(c)
						c.watchChecksums(t)
						c.checkAll(t, tier.Share(t, rows, len(offloads)*i+k, 2*len(offloads)))
					})
				}
			})
		}
	}
}
