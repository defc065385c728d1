package packets_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// TestPing: every ClusterIP answers, whatever its Service's endpoints; the program checks what
// comes back. External and load-balancer IPs, which may be a host's, and other addresses of the
// ranges do not.
func TestPing(t *testing.T) {
	t.Parallel()
	lab.Need(t, "ping")
	c, _ := serveCluster(t, func(c *cluster) []string {
		return append(c.service(1, "far", "", []endpoint{remote}), c.service(2, "none", "", nil)...)
	})
	c.watchChecksums(t)
	ping := func(addr netip.Addr, until ...string) (string, error) {
		return c.client.Output("ping", append(until, "-n", "-c", "2", "-i", "0.01", "-s", "1201", addr.String())...)
	}
	for i := 1; i <= 2; i++ {
		for _, a := range []addrs{clusterIP(i), nodeAddrs(1)} {
			for _, addr := range a {
				if out, err := ping(addr, "-w", "120"); err != nil {
					t.Errorf("ping %s: %v\n%s", addr, err, out)
				}
			}
		}
	}
	for _, a := range []addrs{clusterIP(9), externalIP(1), balancerIP(1)} {
		for _, addr := range a {
			if out, err := ping(addr, "-W", "1"); err == nil {
				t.Errorf("ping %s, which no host has:\n%s", addr, out)
			}
		}
	}
}

// TestPingHost: a host that has a Service's external or load-balancer IP answers itself, and
// nobody in its place when it does not: to a client whose packets a node forwards, and to the node.
func TestPingHost(t *testing.T) {
	t.Parallel()
	lab.Need(t, "ping")
	c, _ := serveCluster(t, func(c *cluster) []string { return c.service(1, "web", "", []endpoint{local}) })
	for family, bits := range []int{32, 128} {
		for _, a := range []addrs{externalIP(1), balancerIP(1)} {
			host := netip.PrefixFrom(a[family], bits)
			c.nodes[1].AddAddr(uplink, host.String())
			c.nodes[0].AddRoute(host, netip.Addr{}, uplink)
		}
	}
	for _, silent := range []bool{false, true} {
		if silent {
			c.nodes[1].SetSysctl("ipv4/icmp_echo_ignore_all", "1")
			c.nodes[1].SetSysctl("ipv6/icmp/echo_ignore_all", "1")
		}
		var pings sync.WaitGroup
		for _, a := range []addrs{externalIP(1), balancerIP(1)} {
			for _, addr := range a {
				for name, from := range map[string]*lab.Namespace{"client": c.client, "node1": c.nodes[0].Namespace} {
					pings.Go(func() {
						until := []string{"-w", "120"} // again each second, until it is answered
						if silent {
							until = []string{"-W", "2"}
						}
						out, err := from.Output("ping", append(until, "-n", "-c", "1", addr.String())...)
						if answered := err == nil; answered == silent {
							t.Errorf("%s: ping %s, whose host is silent: %t, is answered: %t\n%s", name, addr, silent, answered, out)
						}
					})
				}
			}
		}
		pings.Wait()
	}
}

// TestOtherPorts: ports of external and load-balancer addresses that no Service has
// are nobody's business: a host may have the address too.
func TestOtherPorts(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string { return c.service(1, "web", "", []endpoint{remote}) })
	for family, bits := range []int{32, 128} {
		for _, a := range []addrs{externalIP(1), balancerIP(1)} {
			c.nodes[0].AddAddr(uplink, fmt.Sprintf("%s/%d", a[family], bits))
		}
	}
	for _, a := range []addrs{externalIP(1), balancerIP(1)} {
		serve(t, c.nodes[0].Namespace, "own", a)
		for _, network := range networks {
			got, err := ask(c.client, network, netip.AddrPortFrom(a.of(network), backendPort), "x")
			if err != nil || got.name != "own" {
				t.Errorf("%s to %s: %v, %v", network, a.of(network), got, err)
			}
		}
	}
}

// echoPacket returns an ICMP packet of one type, with an Ethernet header.
func echoPacket(from, to netip.Addr, kind byte) []byte {
	icmp := append([]byte{kind, 0, 0, 0, 1, 2, 0, 1}, "payload"...)
	pseudo := uint16(0)
	f := frame{from: netip.AddrPortFrom(from, 0), to: netip.AddrPortFrom(to, 0), protocol: unix.IPPROTO_ICMP, payload: string(icmp[8:])}
	if to.Is6() {
		f.protocol = unix.IPPROTO_ICMPV6
		pseudo = sum(uint32(f.protocol)+uint32(len(icmp)), slices.Concat(from.AsSlice(), to.AsSlice()))
	}
	binary.BigEndian.PutUint16(icmp[2:], ^sum(uint32(pseudo), icmp))
	packet := f.bytes()
	copy(packet[len(packet)-len(icmp):], icmp)
	return packet
}

// TestProgramEcho: a request to a ClusterIP becomes the reply of its destination and goes back;
// replies, requests to other addresses, those of Services too, fragments and what is cut short pass
// untouched.
func TestProgramEcho(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	external, balancer := externalIP(1), balancerIP(1)
	b.agent.Apply(lab.Service("shown",
		fmt.Sprintf(`{type: LoadBalancer, clusterIPs: [10.96.0.2, "fd96::2"], externalIPs: [%q, %q], ports: [{port: 80}]}`, external[0], external[1]),
		fmt.Sprintf(`status: {loadBalancer: {ingress: [{ip: %q}, {ip: %q}]}}`, balancer[0], balancer[1])))
	for family, types := range map[byte][2]byte{4: {8, 0}, 6: {128, 129}} {
		client, service := crafted[family].Addr(), virtual[family].Addr()
		request := echoPacket(client, service, types[0])
		want := echoPacket(service, client, types[1])
		copy(want, slices.Concat(request[6:12], request[:6])) // the Ethernet addresses
		if verdict, out := b.run(t, "bl_ingress", request); verdict != redirect || !bytes.Equal(out, want) {
			t.Errorf("%d: verdict %d, packet\n% x, want\n% x", family, int32(verdict), out, want)
		}
		b.wantUntouched(t, "a reply", echoPacket(client, service, types[1]))
		b.wantUntouched(t, "a request to another host", echoPacket(client, foreign[family].Addr(), types[0]))
		for _, addr := range []netip.Addr{external[family/6], balancer[family/6]} {
			b.wantUntouched(t, "a request to "+addr.String(), echoPacket(client, addr, types[0]))
		}
		for size := len(want) - len("payload") - 8; size < len(want)-len("payload"); size++ {
			b.wantUntouched(t, fmt.Sprintf("%d bytes", size), request[:size])
		}
		if family == 4 {
			b.wantUntouched(t, "a first fragment", with(request, 6, 0x20, 0))
			b.wantUntouched(t, "a last fragment", with(request, 6, 0, 1))
		}
	}
}
