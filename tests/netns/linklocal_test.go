package netns_test

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestLinkLocalClient: a client with a link-local address reaches a backend on another machine.
func TestLinkLocalClient(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	w := newWires(t, lab.Uplink, lab.NewHost(t), nil)
	w.serve(t, lab.AgentOptions{Devices: w.devices})
	for _, family := range families {
		client := map[byte]netip.Prefix{4: netip.MustParsePrefix("169.254.7.9/16"), 6: netip.MustParsePrefix("fe80::9/64")}[family]
		service := map[byte]netip.AddrPort{4: netip.MustParseAddrPort("10.96.0.1:80"), 6: netip.MustParseAddrPort("[fd96::1]:80")}[family]
		w.Outside.AddAddr(wire, client.String())
		if family == 4 {
			w.AddAddr(w.devices[0], "169.254.7.1/16")
		}
		w.routeFrom(t, client.Addr(), service.Addr(), w.addr(0, family, 1))
		for _, network := range []string{"tcp", "udp"} {
			s := w.Outside.Socket(network + string('0'+family))
			if err := s.Connect(service); err != nil {
				t.Errorf("%s to %s: %v", network, service, err)
				continue
			}
			if local, err := s.Local(); err != nil || local.Addr() != client.Addr() {
				t.Errorf("%s: the client is %s, want %s: %v", network, local, client.Addr(), err)
			}
			if network == "udp" {
				if err := s.Send("who"); err != nil {
					t.Error(err)
				}
			}
			want := netip.AddrPortFrom(w.addr(0, family, 3), 8080)
			if got, _, err := s.Receive(); err != nil || got != want.String() {
				t.Errorf("%s to %s: reached %q, want %s: %v", network, service, got, want, err)
			}
		}
	}
}

// routeFrom makes the machine outside reach an address by a gateway, from an address of its own.
func (w *wires) routeFrom(t *testing.T, from, to, gateway netip.Addr) {
	t.Helper()
	dst, err := netlink.ParseIPNet(netip.PrefixFrom(to, to.BitLen()).String())
	if err != nil {
		t.Fatal(err)
	}
	route := &netlink.Route{Dst: dst, Gw: gateway.AsSlice(), Src: from.AsSlice()}
	if err := w.Outside.Run(func() error { return netlink.RouteReplace(route) }); err != nil {
		t.Fatal(err)
	}
}
