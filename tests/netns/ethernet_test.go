package netns_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// TestWithoutEthernet: clients and backends of other machines may be behind a device whose packets have no Ethernet
// header, and reach those behind a device with one, and each other.
func TestWithoutEthernet(t *testing.T) {
	t.Parallel()
	w := newWires(t, lab.Uplink, lab.NewHost(t), nil)
	const mesh = "mesh"
	w.AddTUN(mesh, w.Outside, 0)
	for _, family := range families {
		w.AddAddr(mesh, w.prefix(1, family, 1))
		w.Outside.AddAddr(mesh, w.prefix(1, family, 2))
		w.Outside.AddAddr(mesh, w.prefix(1, family, 3))
	}
	w.devices = append(w.devices, mesh)
	w.checkAll(t, w.serve(t, lab.AgentOptions{Devices: w.devices}), false)
}

// addIPIP adds a tunnel of IP in IP; without a remote end it has many, and takes one from the route of each packet, as
// Calico's tunl0.
func addIPIP(t *testing.T, n *lab.Namespace, name string, local, remote netip.Addr) {
	t.Helper()
	err := n.Run(func() error {
		link := &netlink.Iptun{LinkAttrs: netlink.NewLinkAttrs(), Local: local.AsSlice(), Remote: net.IPv4zero, Proto: unix.IPPROTO_IPIP}
		link.Name = name
		if remote.IsValid() {
			link.Remote = remote.AsSlice()
		}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("the kernel has no such tunnels: they need the module ipip")
	}
	if err != nil {
		t.Fatalf("add %s: %v", name, err)
	}
}

// TestTunnelOfManyEnds: a backend of another machine may be behind a tunnel with many ends; so may a client, which is
// told that a Service has no endpoints.
func TestTunnelOfManyEnds(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	const tunnel = "many"
	addIPIP(t, h.Namespace, tunnel, lab.Node4, netip.Addr{})
	w := newWires(t, lab.Uplink, h, nil)
	addIPIP(t, w.Outside, tunnel, lab.Outside4, lab.Node4)
	w.AddAddr(tunnel, "10.9.0.1/32")
	w.Outside.AddAddr(tunnel, "10.9.0.2/32")
	w.AddRoute(netip.MustParsePrefix("10.9.0.2/32"), lab.Outside4, tunnel)
	w.Outside.AddRoute(netip.MustParsePrefix("10.9.0.1/32"), netip.Addr{}, tunnel)
	w.Outside.AddRoute(netip.MustParsePrefix("10.96.0.8/29"), netip.Addr{}, tunnel)
	a := w.serve(t, lab.AgentOptions{Devices: append(w.devices, tunnel)})
	behind := ap("10.9.0.2:8080")
	w.Outside.ServeTCP(behind)
	a.Apply(lab.Service("behind", "{clusterIP: 10.96.0.2, ports: [{port: 80}]}"), lab.Slice("behind", "8080/TCP", behind.Addr()),
		lab.Service("beside", "{clusterIP: 10.96.0.8, ports: [{port: 80}]}"), lab.Slice("beside", "8080/TCP", w.addr(0, 4, 3)),
		lab.Service("none", "{clusterIP: 10.96.0.9, ports: [{port: 80}]}"))
	w.route(t, netip.MustParsePrefix("10.96.0.2/32"), w.addr(0, 4, 1))
	if got, err := w.ask("tcp4", ap("10.96.0.2:80")); err != nil || got != behind.String() {
		t.Errorf("a backend behind the tunnel: reached %v, %v", got, err)
	}
	if got, err := w.ask("tcp4", ap("10.96.0.8:80")); err != nil || got != netip.AddrPortFrom(w.addr(0, 4, 3), 8080).String() {
		t.Errorf("a client behind the tunnel: reached %v, %v", got, err)
	}
	if got, err := w.ask("tcp4", ap("10.96.0.9:80")); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a Service without endpoints, of a client behind the tunnel: reached %v, %v", got, err)
	}
}
