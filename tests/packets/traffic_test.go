package packets_test

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// volumes are the packets and bytes that nodes have counted of a Service and of all its endpoints, by
// direction.
type volumes map[string][2]uint64

// trafficOf returns what the nodes' metrics say of a Service at a network, of the Service port and of
// its endpoints.
func (c *cluster) trafficOf(t *testing.T, service, network string) (port, backends volumes) {
	t.Helper()
	port, backends = make(volumes), make(volumes)
	labels := fmt.Sprintf(`family="IPv%s",namespace="default",port="%s",protocol="%s",service="%s"`,
		network[3:], network[:1], strings.ToUpper(network[:3]), service)
	series := regexp.MustCompile(`(?m)^beeline_(service|backend)_(packets|bytes)_total\{direction="(\w+)",.*` + labels + `\} (.*)$`)
	for i := range c.agents {
		page, err := c.nodes[i].metrics()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range series.FindAllStringSubmatch(page, -1) {
			of, at := port, 0
			if m[1] == "backend" {
				of = backends
			}
			if m[2] == "bytes" {
				at = 1
			}
			n, err := strconv.ParseFloat(m[4], 64)
			if err != nil {
				t.Fatal(err)
			}
			v := of[m[3]]
			v[at] += uint64(n)
			of[m[3]] = v
		}
	}
	return port, backends
}

// TestTraffic: packets and bytes of a Service and of its endpoints are counted, each once in the
// cluster, on whatever path.
func TestTraffic(t *testing.T) {
	t.Parallel()
	for _, mode := range []struct{ xdp, forwarding string }{{"off", "snat"}, {"native", "snat"}, {"off", "dsr"}, {"native", "dsr"}} {
		t.Run(mode.forwarding+" XDP "+mode.xdp, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode.xdp == "native" && mode.forwarding == "snat")
			c := newClusterFor(t, mode.xdp)
			manifests := append(c.service(1, "near", "", []endpoint{local}), c.service(2, "far", "", []endpoint{remote})...)
			flags := []string{"--xdp", mode.xdp, "--traffic-sampling=1", "--service-metrics-limit=100", "--service-metrics-backends=100"}
			if mode.forwarding == "dsr" {
				c.serveDSR(t, manifests, flags...)
			} else {
				c.serve(t, manifests, flags...)
			}
			for i, service := range []string{"near", "far"} {
				for _, network := range networks {
					soFar := talkMuch(t, c, network, nodePort(network, i+1))
					lab.Eventually(t, fmt.Sprintf("%s %s is counted", service, network), func() bool {
						least := soFar()
						port, backends := c.trafficOf(t, service, network)
						most := soFar()
						for direction, got := range port {
							// A backend's node does not know it by an id in a flow that comes by the tunnel.
							known := mode.forwarding == "snat" || service == "near" || direction == "to_backend"
							want := bounds{least[direction].least, most[direction].most}
							if !want.has(got) || known && got != backends[direction] {
								t.Logf("%s %s %s: the Service has %v, its endpoint %v, want %v", service, network, direction, got, backends[direction], want)
								return false
							}
						}
						return len(port) == len(least)
					})
				}
			}
		})
	}
}

// TestTrafficSockets: a TCP connection of the node's own sockets is counted when it ends, for its
// Service and its endpoint, and its end is told once with what it has carried.
func TestTrafficSockets(t *testing.T) {
	t.Parallel()
	c, a := serveCluster(t, func(c *cluster) []string {
		manifests := append(c.service(1, "near", "", []endpoint{local}), c.service(2, "far", "", []endpoint{remote})...)
		closed := clusterIP(3)
		manifests = append(manifests, lab.Service("closed", fmt.Sprintf("{clusterIPs: [%q, %q], ports: [{name: t, port: 80}]}", closed[0], closed[1])))
		for _, addr := range nodeAddrs(2) {
			manifests = append(manifests, lab.Slice("closed", "t:1/TCP", addr))
		}
		return manifests
	}, "--traffic-sampling=1000", "--service-metrics-limit=100", "--service-metrics-backends=100")
	l := listen(t, c.nodes[0], inspect.EventOptions{Kinds: []string{inspect.EventEnded}, Rate: 10_000})
	clientPort := uint16(20_000)
	for i, service := range []string{"near", "far", "closed"} {
		for _, network := range networks[:2] {
			for _, from := range []*lab.Namespace{c.nodes[0].Namespace, c.podOf(local)} {
				former, _ := c.trafficOf(t, service, network)
				to := netip.AddrPortFrom(clusterIP(i+1).of(network), 80)
				clientPort++
				bytes, packets := talkAsSocket(t, from, network, clientPort, to, service == "closed")
				told := l.one(t, fmt.Sprintf("%s to %s ends", network, service), func(e *inspect.Event) bool { return e.Client.Port() == clientPort })
				if told.Service.Service != service || told.ServiceAddress != to || told.DurationSeconds == nil || told.Bytes == nil || told.Packets == nil || told.BytesModulo != 0 {
					t.Fatalf("%s to %s: told %+v", network, service, told)
				}
				for direction, v := range map[string][2]uint64{
					"to_backend": {told.Packets.FromClient, told.Bytes.FromClient}, "to_client": {told.Packets.FromBackend, told.Bytes.FromBackend},
				} {
					if !packets[direction].has(v[0]) || !bytes[direction].has(v[1]) {
						t.Errorf("%s to %s, %s: told %d packets and %d bytes, want %v and %v", network, service, direction, v[0], v[1], packets[direction], bytes[direction])
					}
					want := former[direction]
					want[0] += v[0]
					want[1] += v[1] + v[0]*headersOf(network)
					if port, backends := c.trafficOf(t, service, network); port[direction] != want || backends[direction] != want {
						t.Errorf("%s to %s, %s: the Service has %v, its endpoint %v, want %v", network, service, direction, port[direction], backends[direction], want)
					}
				}
			}
		}
	}

	// Where nothing is counted any more, a connection that was to be has ended when it is closed.
	s := c.nodes[0].Socket("tcp4")
	clientPort++
	if err := errors.Join(bindPort(s, "tcp4", clientPort), s.Connect(netip.AddrPortFrom(clusterIP(1)[0], 80))); err != nil {
		t.Fatal(err)
	}
	a.Signal(unix.SIGTERM)
	if err := a.Wait(); err != nil {
		t.Fatal(err)
	}
	a.flags = append(a.flags, "--traffic-sampling=0")
	a.start()
	s.Close()
	l.one(t, "it is closed", func(e *inspect.Event) bool { return e.Bytes == nil })
	if ended := l.matching(func(*inspect.Event) bool { return true }); len(ended) != 3*2*2+1 {
		t.Errorf("%d ends were told, want one of each connection", len(ended))
	}
}

// headersOf is what TCP over IP adds to each packet, with timestamps.
func headersOf(network string) uint64 {
	if network == "tcp6" {
		return 40 + 32
	}
	return 20 + 32
}

// span is a number within bounds.
type span struct{ least, most uint64 }

func (s span) has(v uint64) bool { return v >= s.least && v <= s.most }

// talkAsSocket makes a connection and ends it, or has it refused, and returns what the kernel has
// counted of it, by direction.
func talkAsSocket(t *testing.T, from *lab.Namespace, network string, port uint16, to netip.AddrPort, refused bool) (bytes, packets map[string]span) {
	t.Helper()
	s := from.Socket(network)
	defer s.Close()
	if err := bindPort(s, network, port); err != nil {
		t.Fatal(err)
	}
	if err := s.Connect(to); refused != (err != nil) {
		t.Fatalf("%s to %s: %v", network, to, err)
	}
	for i := 0; i < 20 && !refused; i++ {
		if _, err := s.Ask(strings.Repeat("x", 500)); err != nil {
			t.Fatal(err)
		}
	}
	info, err := s.TCPInfo()
	if err != nil {
		t.Fatal(err)
	}
	// There follow FIN of both sides, which has a number, its acknowledgements, and that of the last data.
	within := func(n uint64, more uint64) span { return span{n, n + more} }
	return map[string]span{"to_backend": within(info.Bytes_acked, 501), "to_client": within(info.Bytes_received, 1)},
		map[string]span{"to_backend": within(uint64(info.Segs_out), 3), "to_client": within(uint64(info.Segs_in), 3)}
}

// TestTopTraffic: beeline top has the packets and bytes between two readings, of a Service port and its
// endpoint.
func TestTopTraffic(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		return append(c.service(1, "busy", "", []endpoint{remote}), c.service(2, "idle", "", []endpoint{local})...)
	}, "--traffic-sampling=1")
	d, err := inspect.Open(c.nodes[0].BPFFS)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	sample := func() *inspect.Sample {
		s, err := d.Sample()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	talkMuch(t, c, "udp4", nodePort("udp4", 1))
	before := sample()
	want := talkMuch(t, c, "udp4", nodePort("udp4", 1))()
	top := sample().Since(before)
	for _, service := range top.Services {
		for _, p := range service.Ports {
			rates := map[string]*inspect.TrafficRates{"port": p.Traffic, "endpoint": p.Backends[0].Traffic}
			for what, r := range rates {
				got := map[string][2]uint64{
					"to_backend": {times(r.ToBackend.PacketsPerSecond, top.Seconds), times(r.ToBackend.BytesPerSecond, top.Seconds)},
					"to_client":  {times(r.ToClient.PacketsPerSecond, top.Seconds), times(r.ToClient.BytesPerSecond, top.Seconds)},
				}
				for direction, bounds := range want {
					if service.Name != "busy" || p.Protocol != "UDP" || p.Family != "IPv4" {
						bounds.least, bounds.most = [2]uint64{}, [2]uint64{}
					}
					if !bounds.has(got[direction]) {
						t.Errorf("%s of %s %d/%s %s %s: %v, want %v", what, service.Name, p.Port, p.Protocol, p.Family, direction, got[direction], bounds)
					}
				}
			}
		}
	}
	// A Service port and its endpoint.
	if !slices.ContainsFunc(top.Maps, func(m inspect.Map) bool { return m.Name == "bl_traffic" && m.Used == 2 && m.Size == 65536 }) {
		t.Errorf("the maps are %+v, want bl_traffic with 2 of 65536 entries", top.Maps)
	}
	if top.Matching("", inspect.ByBytes)[0].Name != "busy" || top.Matching("", inspect.ByPackets)[0].Name != "busy" {
		t.Error("by bytes or packets the idle Service comes first")
	}
}

// times returns how much there was at a rate.
func times(rate, seconds float64) uint64 { return uint64(math.Round(rate * seconds)) }

// bounds are what packets and bytes must be within.
type bounds struct{ least, most [2]uint64 }

func (b bounds) has(v [2]uint64) bool {
	return v[0] >= b.least[0] && v[0] <= b.most[0] && v[1] >= b.least[1] && v[1] <= b.most[1]
}

// talkMuch sends and has sent back, and returns what that has taken so far by direction: TCP may yet
// acknowledge something.
func talkMuch(t *testing.T, c *cluster, network string, to netip.AddrPort) (soFar func() map[string]bounds) {
	t.Helper()
	const count = 20
	payload := strings.Repeat("x", 500)
	s := c.client.Socket(network)
	t.Cleanup(s.Close)
	header := uint64(20)
	if to.Addr().Is6() {
		header = 40
	}
	if err := s.Connect(to); err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(network, "tcp") {
		for range count {
			if _, err := s.Ask(payload); err != nil {
				t.Fatal(err)
			}
		}
		return func() map[string]bounds {
			info, err := s.TCPInfo()
			if err != nil {
				t.Fatal(err)
			}
			// With TCP options, of up to 40 bytes.
			within := func(segments uint32, data uint64) bounds {
				packets := uint64(segments)
				return bounds{[2]uint64{packets, data + packets*(header+20)}, [2]uint64{packets, data + packets*(header+60)}}
			}
			return map[string]bounds{
				"to_backend": within(info.Segs_out, count*uint64(len(payload))),
				"to_client":  within(info.Segs_in, info.Bytes_received),
			}
		}
	}
	var received uint64
	for range count {
		got, err := s.Ask(payload)
		if err != nil {
			t.Fatal(err)
		}
		received += uint64(len(got)) + header + 8
	}
	sent := count * (uint64(len(payload)) + header + 8)
	most := [2]uint64{count, max(sent, received)}
	if s.Repeated() {
		most = [2]uint64{2 * count, 2 * most[1]}
	}
	return func() map[string]bounds {
		return map[string]bounds{
			"to_backend": {[2]uint64{count, sent}, most},
			"to_client":  {[2]uint64{count, received}, most},
		}
	}
}

// TestTrafficSample: with a sample, each flow is counted in both directions or not at all, for as many
// as it stands for.
func TestTrafficSample(t *testing.T) {
	t.Parallel()
	const sampling, flows = 4, 400
	c := newClusterFor(t, "native")
	c.serve(t, c.service(1, "web", "", []endpoint{remote}),
		"--xdp=native", fmt.Sprint("--traffic-sampling=", sampling), "--service-metrics-limit=100")
	for _, network := range networks[2:] {
		for i := range flows {
			connectFrom(t, c.client, network, uint16(20000+i), nodePort(network, 1))
		}
		port, _ := c.trafficOf(t, "web", network)
		out, back := port["to_backend"][0], port["to_client"][0]
		// Five standard deviations: one run in a million is outside.
		if out%sampling != 0 || out != back || out < flows-175 || out > flows+175 {
			t.Errorf("%s: %d flows of a datagram each way are counted as %d and %d", network, flows, out, back)
		}
	}
}
