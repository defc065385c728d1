package packets_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/beeline-lb/beeline/pkg/inspect"
	dsr "github.com/beeline-lb/beeline/pkg/tunnel"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// listener collects what the programs of a node tell.
type listener struct {
	mu     sync.Mutex
	events []*inspect.Event
}

// listen begins to listen on a node.
func listen(t *testing.T, n *node, o inspect.EventOptions) *listener {
	t.Helper()
	l := new(listener)
	m, err := inspect.Listen(n.BPFFS, o)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- n.Thread(func() error {
			for {
				e, err := m.Next()
				if err != nil {
					return err
				}
				l.mu.Lock()
				l.events = append(l.events, e)
				l.mu.Unlock()
			}
		})
	}()
	t.Cleanup(func() {
		m.Interrupt()
		<-ended
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, e := range l.events {
				t.Logf("%+v", *e)
			}
		}
	})
	return l
}

// matching returns the events that match.
func (l *listener) matching(match func(*inspect.Event) bool) (list []*inspect.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if match(e) {
			list = append(list, e)
		}
	}
	return list
}

// one waits for an event that matches, and returns the first.
func (l *listener) one(t *testing.T, what string, match func(*inspect.Event) bool) *inspect.Event {
	t.Helper()
	var list []*inspect.Event
	lab.Eventually(t, "an event: "+what, func() bool {
		list = l.matching(match)
		return len(list) > 0
	})
	return list[0]
}

// TestMonitorPackets: what becomes of a client's connections is told with its names, once each.
func TestMonitorPackets(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"off", "native"} {
		t.Run("XDP "+mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "native")
			c := newXDPCluster(t, false)
			manifests := c.service(1, "far", "", []endpoint{remote})
			manifests = append(manifests, c.service(2, "near", "", []endpoint{local})...)
			manifests = append(manifests, c.service(3, "none", "", nil)...)
			manifests = append(manifests, c.service(4, "private", `loadBalancerSourceRanges: ["10.9.0.0/30", "fd09::/126"],`, []endpoint{local})...)
			c.serve(t, manifests, "--xdp", mode, "--conntrack-udp-timeout", "1s", "--conntrack-udp-timeout-stream", "1s")
			l := listen(t, c.nodes[0], inspect.EventOptions{Rate: 10_000})
			var datagrams []*inspect.Event
			for i, network := range networks {
				hook := "tc"
				if mode == "native" && network[:3] == "tcp" { // the client's checksums of UDP are unfinished
					hook = "xdp"
				}
				far := c.monitorServed(t, l, network, 1, uint16(20_000+i), hook)
				near := c.monitorServed(t, l, network, 2, uint16(20_100+i), hook)
				if network[:3] == "udp" {
					datagrams = append(datagrams, far, near)
				}
				c.monitorUnserved(t, l, network, nodePort(network, 3), "default/none:"+network[:1], inspect.EventRefused, "no_endpoint", uint16(20_200+i))
				balancer := netip.AddrPortFrom(balancerIP(4).of(network), 80)
				c.monitorUnserved(t, l, network, balancer, "default/private:"+network[:1], inspect.EventDropped, "source_range", uint16(20_300+i))
				undeclared := netip.AddrPortFrom(clusterIP(1).of(network), 81)
				c.monitorUnserved(t, l, network, undeclared, "default/far", inspect.EventRefused, "undeclared_port", uint16(20_400+i))
			}
			for _, begin := range datagrams {
				monitorExpired(t, l, begin)
			}
		})
	}
}

// from returns what matches events about connections from a port of the client.
func from(port uint16, network string) func(*inspect.Event) bool {
	client := netip.AddrPortFrom(clientAddrs.of(network), port)
	return func(e *inspect.Event) bool {
		return e.Client == client && e.Hook != "connect" && e.Hook != "sendmsg" && e.Hook != "close"
	}
}

// monitorServed makes a connection to a NodePort of a Service by its number, which a backend on
// node 2 serves (1) or one on node 1 (2), and looks at what is told.
func (c *cluster) monitorServed(t *testing.T, l *listener, network string, service int, port uint16, hook string) *inspect.Event {
	t.Helper()
	s := c.client.Socket(network)
	if err := bindPort(s, network, port); err != nil {
		t.Fatal(err)
	}
	to := nodePort(network, service)
	got, err := askBy(s, network, to, "payload")
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	name := fmt.Sprintf("%s from %d", network, port)
	mine := from(port, network)
	begin := l.one(t, name+" begins", func(e *inspect.Event) bool { return mine(e) && e.Kind == inspect.EventConnection })
	source := got.client
	if service == 2 {
		source = netip.AddrPort{}
	}
	at := fmt.Sprint(begin.Protocol, " ", begin.ServiceAddress, " ", begin.Service, " ", begin.Backend, " ", begin.Source, " ", begin.Hook, " ", begin.Device)
	want := fmt.Sprint(strings.ToUpper(network[:3]), " ", to, " ", "default/"+map[int]string{1: "far", 2: "near"}[service]+":"+network[:1], " ",
		netip.AddrPortFrom(c.addrsOf([]endpoint{remote, local}[service-1]).of(network), backendPort), " ", source, " ", hook, " ", uplink)
	if at != want {
		t.Errorf("%s: told %s, want %s", name, at, want)
	}
	if network[:3] == "tcp" {
		end := l.one(t, name+" ends", func(e *inspect.Event) bool { return mine(e) && e.Kind == inspect.EventEnded })
		greeted := uint64(len(got.greeting.String()) + len("payload"))
		if end.DurationSeconds == nil || *end.DurationSeconds <= 0 {
			t.Errorf("%s: open for %v s", name, end.DurationSeconds)
		}
		// FIN takes a number, too.
		if b := end.Bytes; b == nil || b.FromClient-uint64(len("payload")) > 1 || b.FromBackend-greeted > 1 {
			t.Errorf("%s: %+v bytes, want %d and %d", name, b, len("payload"), greeted)
		}
		if end.BytesModulo != 1<<32 {
			t.Errorf("%s: bytes modulo %d", name, end.BytesModulo)
		}
	}
	if list := l.matching(func(e *inspect.Event) bool { return mine(e) && e.Kind == inspect.EventConnection }); len(list) != 1 {
		t.Errorf("%s: told %d times", name, len(list))
	}
	return begin
}

// monitorExpired waits until the agent has removed a flow that was told.
func monitorExpired(t *testing.T, l *listener, begin *inspect.Event) {
	t.Helper()
	end := l.one(t, fmt.Sprintf("the flow of %s expires", begin.Client), func(e *inspect.Event) bool {
		return e.Client == begin.Client && e.ServiceAddress == begin.ServiceAddress && e.Kind == inspect.EventEnded
	})
	if end.Hook != "timeout" || end.Backend != begin.Backend || end.Service != begin.Service || end.DurationSeconds == nil || *end.DurationSeconds < 1 {
		t.Errorf("the end of the flow of %s is told as %+v", begin.Client, *end)
	}
}

// monitorUnserved asks for what is not served, and looks at what is told.
func (c *cluster) monitorUnserved(t *testing.T, l *listener, network string, to netip.AddrPort, service, kind, reason string, port uint16) {
	t.Helper()
	s := c.client.Socket(network)
	defer s.Close()
	if err := bindPort(s, network, port); err != nil {
		t.Fatal(err)
	}
	if err := s.StartConnect(to); err != nil {
		t.Fatal(err)
	}
	if network[:3] == "udp" {
		if err := s.Send("hello"); err != nil {
			t.Fatal(err)
		}
	}
	mine := from(port, network)
	e := l.one(t, fmt.Sprintf("%s to %s", network, to), mine)
	if e.Kind != kind || e.Reason != reason || e.ServiceAddress != to || e.Service.String() != service || e.Explanation == "" {
		t.Errorf("%s to %s: told %+v, want %s for %s of %q", network, to, *e, kind, reason, service)
	}
}

// TestMonitorDepartures: an endpoint that leaves its Service with open flows is told once, with their
// number.
func TestMonitorDepartures(t *testing.T) {
	t.Parallel()
	c, a := serveCluster(t, func(c *cluster) []string { return c.service(1, "web", "", []endpoint{remote, otherRemote}) })
	l := listen(t, c.nodes[0], inspect.EventOptions{Rate: 10_000, Kinds: []string{inspect.EventLeft}})
	open := make(map[string]uint32) // connections to the endpoint that leaves, by network
	for _, network := range networks {
		for range 10 {
			if _, hello := connect(t, c.client, network, nodePort(network, 1)); hello.name == remote.server() {
				open[network]++
			}
		}
	}
	a.apply(c.service(1, "web", "", []endpoint{otherRemote})...)
	for _, network := range networks {
		protocol, backend := strings.ToUpper(network[:3]), netip.AddrPortFrom(c.addrsOf(remote).of(network), backendPort)
		left := func(e *inspect.Event) bool { return e.Protocol == protocol && e.Backend == backend }
		e := l.one(t, network+": the endpoint has left", left)
		if e.Flows != open[network] || e.Service.String() != "default/web:"+network[:1] || e.ServiceAddress != nodePort(network, 1) || e.Client.IsValid() || e.Source.IsValid() {
			t.Errorf("%s: told %+v, want %d flows of default/web", network, e, open[network])
		}
	}
	// The next walk finds the second endpoint, and the first again.
	a.apply(c.service(1, "web", "", []endpoint{local})...)
	gone := netip.AddrPortFrom(c.addrsOf(otherRemote).of("tcp4"), backendPort)
	l.one(t, "the second endpoint has left", func(e *inspect.Event) bool { return e.Backend == gone })
	if again := l.matching(func(e *inspect.Event) bool { return e.Backend.Addr() == c.addrsOf(remote).of("tcp4") }); len(again) != 2 {
		t.Errorf("told of the first %d times, want once for TCP and once for UDP: %+v", len(again), again)
	}
}

// TestMonitorEvictions: evictions from the full flow table are told.
func TestMonitorEvictions(t *testing.T) {
	t.Parallel()
	tier.Variant(t, false)
	const table, first, flows = 1024, 10, 3000
	c, _ := serveCluster(t, func(c *cluster) []string { return c.service(1, "web", "", []endpoint{remote}) }, fmt.Sprint("--max-flows=", table))
	open := func(from, to int) {
		for i := from; i < to; i++ {
			connectFrom(t, c.client, "tcp4", uint16(20000+i), nodePort("tcp4", 1))
		}
	}
	open(0, first)
	lab.Eventually(t, "the agent has walked over the table", func() bool {
		page, err := c.nodes[0].metrics()
		return err == nil && strings.Contains(page, fmt.Sprintf("\nbeeline_flows %d\n", first))
	})
	l := listen(t, c.nodes[0], inspect.EventOptions{Rate: 10_000, Kinds: []string{inspect.EventEvicted}})
	open(first, flows)
	if e := l.one(t, "flows are evicted", func(*inspect.Event) bool { return true }); e.Flows == 0 || e.Protocol != "" || e.Service.Service != "" {
		t.Errorf("told %+v", e)
	}
}

// TestMonitorSourcePorts: a connection for which no source port is free is told as dropped.
func TestMonitorSourcePorts(t *testing.T) {
	t.Parallel()
	const ports = 4
	c, _ := serveCluster(t, func(c *cluster) []string { return c.service(1, "far", "", []endpoint{remote}) },
		"--snat-port-range", fmt.Sprintf("61000-%d", 61000+ports-1))
	l := listen(t, c.nodes[0], inspect.EventOptions{Rate: 10_000, Kinds: []string{inspect.EventDropped}})
	for _, network := range []string{"udp4", "udp6"} {
		to := nodePort(network, 1)
		for port := uint16(25000); port < 25000+ports; port++ {
			connectFrom(t, c.client, network, port, to)
			connectFrom(t, c.other, network, port, to)
		}
		const lost = 25000 + ports
		connectFrom(t, c.client, network, lost, to)
		s := boundSocket(t, c.other, network, lost)
		if err := s.Connect(to); err != nil {
			t.Fatal(err)
		}
		noPort := func(e *inspect.Event) bool { return e.Reason == "no_source_port" && e.ServiceAddress == to }
		sendUntil(t, network+": no source port", func() error { return s.Send("lost") }, func() bool { return len(l.matching(noPort)) > 0 })
		e := l.matching(noPort)[0]
		if e.Client.Port() != lost || e.Service.String() != "default/far:u" || e.Backend.Addr() != c.addrsOf(remote).of(network) {
			t.Errorf("%s: told %+v", network, e)
		}
	}
}

// TestMonitorTunnel: a packet that the tunnel's checks drop is told once, with the reason and with whom
// it came from.
func TestMonitorTunnel(t *testing.T) {
	tier.Slow(t, "TestProgramTunnelDrops drops the same packets")
	byTunnels(t, 2, func(t *testing.T, c *cluster, mode tunnelMode) {
		const secret = "the secret of the cluster"
		list, err := dsr.ParseSecrets([]byte(secret))
		if err != nil {
			t.Fatal(err)
		}
		mark, _ := list.Marks()
		file := secretFile{t: t, name: filepath.Join(t.TempDir(), "secrets")}
		file.write(secret)
		c.serveDSR(t, c.service(1, "web", "", []endpoint{remote}), "--xdp", mode.xdp, "--dsr-secret-file", file.name)
		drops := inspect.EventOptions{Rate: 10_000, Kinds: []string{inspect.EventDropped}}
		sender, receiver := listen(t, c.nodes[0], drops), listen(t, c.nodes[1], drops)
		here, there := c.nodes[0].listed[0], c.nodes[1].listed[0]
		stranger := clientAddrs[mode.family]
		header := headerSize(there)
		marked := func(packet []byte) []byte { return with(packet, header+secretAt, mark[:]...) }
		byXDP := map[string]string{"off": "tc", "native": "xdp"}[mode.xdp]
		mac := c.macOf(t, c.nodes[1].Namespace, uplink)
		sent := 0
		for _, network := range networks {
			f := frame{from: netip.AddrPortFrom(clientAddrs.of(network), 999), to: nodePort(network, 1), protocol: protocols[strings.ToUpper(network[:3])], flags: flagSYN}
			if network[:3] == "udp" {
				f.payload = "XDP takes out a datagram that is as long as TCP's header" // others are left to tc
			}
			backend := netip.AddrPortFrom(c.addrsOf(remote).of(network), backendPort)
			nobodys := f
			nobodys.to = nodePort(network, 2)
			for _, tt := range []struct {
				reason, hook string
				packet       []byte
				client, to   netip.AddrPort
			}{
				{"tunnel_unknown_sender", byXDP, marked(tunnelled(stranger, there, 0xc124, backend, f.bytes())), netip.AddrPortFrom(stranger, 0xc124), netip.AddrPortFrom(there, dsrPort)},
				{"tunnel_wrong_secret", byXDP, c.tunnelled(backend, f), netip.AddrPortFrom(here, 0xc123), netip.AddrPortFrom(there, dsrPort)},
				{"tunnel_malformed", "tc", with(marked(c.tunnelled(backend, f)), header+geneveAt, 7), netip.AddrPortFrom(here, 0xc123), netip.AddrPortFrom(there, dsrPort)},
				{"tunnel_no_backend", byXDP, marked(c.tunnelled(netip.AddrPortFrom(c.addrsOf(local).of(network), backendPort), f)), f.from, f.to},
				{"tunnel_no_service", byXDP, marked(c.tunnelled(backend, nobodys)), f.from, nobodys.to},
			} {
				matches := func(e *inspect.Event) bool {
					return e.Reason == tt.reason && e.Client == tt.client && e.ServiceAddress == tt.to
				}
				before := len(receiver.matching(matches)) // of other networks
				sent += sendUntil(t, fmt.Sprintf("%s: %s to %s, %s", network, tt.client, tt.to, tt.reason), func() error {
					return sendFrame(c.router, "node2", toMAC(tt.packet, mac))
				}, func() bool { return len(receiver.matching(matches)) > before })
				if e := receiver.matching(matches)[before]; e.Hook != tt.hook || e.Device != uplink || e.Explanation == "" {
					t.Errorf("%s, %s: told %+v, want %s at %s", network, tt.reason, *e, tt.hook, uplink)
				}
			}
		}
		if told := receiver.matching(func(*inspect.Event) bool { return true }); len(told) > sent {
			t.Errorf("told %d events of %d packets", len(told), sent)
		}
		spoofed := func(e *inspect.Event) bool { return e.Reason == "tunnel_spoofed" }
		sendUntil(t, "tunnel_spoofed", func() error { return c.spoof(c.nodes[0].Namespace, "") }, func() bool { return len(sender.matching(spoofed)) > 0 })
		e := sender.matching(spoofed)[0]
		if e.Hook != "tc" || e.Device != uplink || e.Client.Addr() != here || e.ServiceAddress != netip.AddrPortFrom(there, dsrPort) {
			t.Errorf("told %+v", *e)
		}
	})
}
