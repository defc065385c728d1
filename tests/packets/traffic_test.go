package packets_test

import (
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

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
