package netns_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// virtuals are the addresses of IPVS's virtual servers, which are no Services.
var virtuals = []netip.AddrPort{ap("10.97.0.1:80"), ap("[fd97::1]:80")}

// virtual returns the one of a network.
func virtual(network string) netip.AddrPort { return virtuals[familyOf(network)] }

// familyOf returns 0 for IPv4 and 1 for IPv6.
func familyOf(network string) int { return strings.Index("46", network[3:]) }

// director is IPVS in a namespace, with one virtual server.
type director struct {
	t       *testing.T
	handle  *ipvs.Handle
	service *ipvs.Service
}

// newDirector skips the test where the kernel has no IPVS.
func newDirector(t *testing.T, h *lab.Host) *director {
	t.Helper()
	d := &director{t: t}
	err := h.Thread(func() (err error) {
		if _, err := os.Stat("/proc/thread-self/net/ip_vs"); err != nil {
			return err
		}
		d.handle, err = ipvs.New("")
		return err
	})
	if os.IsNotExist(err) {
		t.Skip("this kernel has no IPVS: make test-kernels boots one that has")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.handle.Close)
	for _, to := range virtuals {
		h.AddAddr("lo", netip.PrefixFrom(to.Addr(), to.Addr().BitLen()).String())
	}
	return d
}

// serve replaces the virtual server.
func (d *director) serve(network, scheduler string, weights []int, backends []netip.Addr) {
	d.t.Helper()
	family, mask, protocol := uint16(unix.AF_INET), uint32(0xffffffff), uint16(unix.IPPROTO_TCP)
	if strings.HasSuffix(network, "6") {
		family, mask = unix.AF_INET6, 128
	}
	if strings.HasPrefix(network, "udp") {
		protocol = unix.IPPROTO_UDP
	}
	if d.service != nil {
		d.must(d.handle.DelService(d.service))
	}
	to := virtual(network)
	d.service = &ipvs.Service{Address: to.Addr().AsSlice(), Port: to.Port(), Protocol: protocol,
		SchedName: scheduler, AddressFamily: family, Netmask: mask}
	d.must(d.handle.NewService(d.service))
	for i, b := range backends {
		d.must(d.handle.NewDestination(d.service, &ipvs.Destination{Address: b.AsSlice(), Port: lab.BackendPort,
			Weight: weights[i], AddressFamily: family, ConnectionFlags: ipvs.ConnectionFlagMasq}))
	}
}

func (d *director) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal("ipvs: ", err)
	}
}

// active returns the active connections that IPVS has counted.
func (d *director) active(backends []netip.Addr) []int {
	d.t.Helper()
	list, err := d.handle.GetDestinations(d.service)
	d.must(err)
	counts := make([]int, len(backends))
	for _, to := range list {
		addr, _ := netip.AddrFromSlice(to.Address)
		counts[slices.Index(backends, addr.Unmap())] = to.ActiveConnections
	}
	return counts
}

// side is one of the two that are compared.
type side struct {
	name   string
	from   *lab.Namespace
	to     netip.AddrPort
	active func() []int
	state  servers
	open   []held
}

// allowed returns the backends that IPVS's algorithm has for the next connection.
func (s *side) allowed() []int {
	if slices.Contains(locality, s.state.algorithm) {
		return s.state.next()
	}
	return leastLoaded(s.state.algorithm, s.state.active, s.state.weights)
}

// connect makes a connection and fails when it reaches another backend.
func (s *side) connect(t *testing.T, network string, backends []netip.Addr) {
	t.Helper()
	allowed := s.allowed()
	c := hold(t, s.from, network, s.to, backends)
	if !slices.Contains(allowed, c.backend) {
		t.Fatalf("%s, %s, %s: with servers %v and %v active of weights %v a connection reached %d, want one of %v",
			s.name, s.state.algorithm, network, s.state.list, s.state.active, s.state.weights, c.backend, allowed)
	}
	s.state.choose(c.backend)
	s.open = append(s.open, c)
}

// end closes a connection and waits until it is no longer active.
func (s *side) end(t *testing.T, i int) {
	t.Helper()
	s.open[i].socket.Close()
	s.state.active[s.open[i].backend]--
	s.open = slices.Delete(s.open, i, i+1)
	lab.Eventually(t, fmt.Sprintf("%s counts %v", s.name, s.state.active), func() bool { return slices.Equal(s.active(), s.state.active) })
}

// TestIPVS: the same connections, made and ended in the same order, go where the algorithm has
// them through the kernel's IPVS and through Beeline; what stays open is shared alike.
func TestIPVS(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	d := newDirector(t, h)
	weights := []int{1, 4, 0, 2, 1, 7}
	frontends := algorithmFrontends[:2]
	if tier.Brief(t) {
		frontends = frontends[:1]
	}
	for _, algorithm := range append(slices.Clone(leastConn), locality...) {
		a.Apply(append(append(weighted(weights, backends4(len(weights))), weighted(weights, backends6(len(weights)))...), withAlgorithm(algorithm, ""))...)
		for _, service := range frontends {
			network := service.network
			backends := backendsOf(network, len(weights))
			d.serve(network, algorithm, weights, backends)
			state := func() servers {
				return servers{algorithm: algorithm, active: make([]int, len(weights)), weights: weights}
			}
			sides := []*side{
				{name: "IPVS", from: h.Pod, to: virtual(network), state: state(), active: func() []int { return d.active(backends) }},
				{name: "Beeline", from: h.Namespace, to: service.to, state: state(), active: func() []int { return activeSockets(t, a, protocolOf(network), backends) }},
			}
			// An inactive connection weighs a 256th in IPVS: 10 of them change no choice.
			for ends := 0; len(sides[0].open) < 24; {
				for _, s := range sides {
					s.connect(t, network, backends)
				}
				if n := len(sides[0].open); ends < 10 && n > 3 && rand.IntN(2) == 0 {
					ends++
					at := rand.IntN(n)
					for _, s := range sides {
						s.end(t, at)
					}
				}
			}
			for i, n := range sides[0].state.active {
				if m := sides[1].state.active[i]; !slices.Contains(locality, algorithm) && (n-m > 1 || m-n > 1) {
					t.Errorf("%s, %s: IPVS has %v active, Beeline %v", algorithm, network, sides[0].state.active, sides[1].state.active)
					break
				}
			}
			// IPVS drops what comes after its service is deleted, a FIN as well, and its next
			// service of the same servers has the connections that never ended.
			for _, s := range sides {
				for _, c := range s.open {
					c.socket.Close()
				}
				lab.Eventually(t, s.name+" counts no active connections", func() bool { return slices.Max(s.active()) == 0 })
			}
		}
	}
}

// TestIPVSTurns: a cycle of rr and wrr has each backend as often as IPVS's.
func TestIPVSTurns(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	d := newDirector(t, h)
	weights, backends := []int{1, 4, 0, 2, 1, 7}, backends4(6)
	for algorithm, cycle := range map[string]int{"rr": 5, "wrr": 15} {
		a.Apply(append(weighted(weights, backends), withAlgorithm(algorithm, ""))...)
		d.serve("tcp4", algorithm, weights, backends)
		var shares [2][]int
		for i, from := range []*lab.Namespace{h.Pod, h.Namespace} {
			to := []netip.AddrPort{virtual("tcp4"), algorithmFrontends[0].to}[i]
			list, err := sequence(from, "tcp4", to, backends, 2*cycle)
			if err != nil {
				t.Fatal(err)
			}
			shares[i] = make([]int, len(weights))
			for _, backend := range list {
				shares[i][backend]++
			}
		}
		if !slices.Equal(shares[0], shares[1]) {
			t.Errorf("%s: in two cycles IPVS chose %v, Beeline %v", algorithm, shares[0], shares[1])
		}
	}
}

// manyClients are addresses outside that clients can be bound to, of both families.
var manyClients = []netip.Prefix{netip.MustParsePrefix("10.50.0.0/16"), netip.MustParsePrefix("fd50::/112")}

// addManyClients makes them addresses of the namespace outside.
func addManyClients(t *testing.T, h *lab.Host) {
	t.Helper()
	for i, clients := range manyClients {
		h.AddRoute(clients, []netip.Addr{lab.Outside4, lab.Outside6}[i], lab.Uplink)
		err := h.Outside.Run(func() error {
			link, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			dst, err := netlink.ParseIPNet(clients.String())
			if err != nil {
				return err
			}
			return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: unix.RT_SCOPE_HOST})
		})
		if err != nil {
			t.Fatal(err)
		}
		node := []netip.Addr{lab.Node4, lab.Node6}[i]
		for _, to := range []netip.Addr{virtuals[i].Addr(), algorithmFrontends[i].to.Addr()} {
			h.Outside.AddRoute(netip.PrefixFrom(to, to.BitLen()), node, "node")
		}
	}
}

// reachFrom returns the backend that a datagram from an address and port outside reaches.
func reachFrom(t *testing.T, h *lab.Host, network string, from, to netip.AddrPort) netip.Addr {
	t.Helper()
	s := h.Outside.Socket(network)
	defer s.Close()
	err := s.SetOption([]int{unix.SOL_IP, unix.SOL_IPV6}[familyOf(network)], []int{unix.IP_FREEBIND, unix.IPV6_FREEBIND}[familyOf(network)], 1)
	if err == nil {
		err = s.Bind(from)
	}
	if err == nil {
		err = s.Connect(to)
	}
	var answer string
	if err == nil {
		answer, err = s.Ask("who")
	}
	if err != nil {
		t.Fatalf("%s from %s to %s: %v", network, from, to, err)
	}
	return netip.MustParseAddrPort(answer).Addr()
}

// TestIPVSHashes: of 4,096 clients outside, each server of sh and mh has the share that its weight says, through
// Beeline within 2 %, as through the kernel's IPVS, whose tables are less even; a client has the same one again. With
// dh one has all. Which clients there are makes the outcome the same each time. Shares of 512 clients, as many as in
// an emulated kernel, may differ thrice as much.
func TestIPVSHashes(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{Devices: []string{lab.Uplink}})
	d := newDirector(t, h)
	addManyClients(t, h)
	weights := []int{1, 4, 3, 2, 1, 7} // with 0, sh of IPVS refuses the clients that it has for that server
	many, wider := 4096, 1.
	if tier.Brief(t) {
		many, wider = 512, 3
	}
	port := uint16(20_000) // another one for each datagram of a client: IPVS keeps connections for minutes
	for _, tt := range []struct {
		scheduler, service string
		clients            int
	}{
		{"sh", withAlgorithm("sh", ""), many},
		{"mh", withAlgorithm("maglev", "sessionAffinity: ClientIP,"), many},
		{"dh", withAlgorithm("dh", ""), 64},
	} {
		a.Apply(append(append(weighted(weights, backends4(len(weights))), weighted(weights, backends6(len(weights)))...), tt.service)...)
		for _, s := range algorithmFrontends[2:] {
			backends := backendsOf(s.network, len(weights))
			d.serve(s.network, tt.scheduler, weights, backends)
			for _, through := range []struct {
				name  string
				to    netip.AddrPort
				limit float64
			}{{"IPVS", virtual(s.network), 0.03}, {"Beeline", s.to, 0.02}} {
				what := fmt.Sprintf("%s, %s, %s", through.name, tt.scheduler, s.network)
				shares, client := make([]int, len(weights)), manyClients[familyOf(s.network)].Addr()
				port += 2
				for i := range tt.clients {
					client = client.Next()
					got := reachFrom(t, h, s.network, netip.AddrPortFrom(client, port), through.to)
					shares[slices.Index(backends, got)]++
					if i%16 > 0 {
						continue
					}
					if again := reachFrom(t, h, s.network, netip.AddrPortFrom(client, port+1), through.to); again != got {
						t.Errorf("%s: %s reached %s and then %s", what, client, got, again)
					}
				}
				if tt.scheduler != "dh" {
					checkShares(t, what, shares, weights, wider*through.limit)
				} else if slices.Max(shares) != tt.clients {
					t.Errorf("%s: the servers had %v, want one to have all", what, shares)
				}
			}
		}
	}
}

// checkShares wants the servers to have had their shares, by weight; limit is by how much of all a share may differ.
func checkShares(t *testing.T, what string, shares, weights []int, limit float64) {
	t.Helper()
	all, sum := 0, 0
	for i, n := range shares {
		all, sum = all+n, sum+weights[i]
	}
	for i, n := range shares {
		if math.Abs(float64(n)/float64(all)-float64(weights[i])/float64(sum)) > limit {
			t.Errorf("%s: the servers of weights %v had %v", what, weights, shares)
			return
		}
	}
	t.Logf("%s: the servers of weights %v had %v", what, weights, shares)
}
