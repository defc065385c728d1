package packets_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

// TestProgramBalancerSource: a client of the node whose address is the load-balancer IP is let in
// whatever the source ranges; from outside it is not, unless a range has it.
func TestProgramBalancerSource(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	balancer, listed := balancerIP(1), balancerIP(2)
	b.agent.Apply(
		lab.Service("guarded", `{type: LoadBalancer, clusterIPs: [10.96.0.2, "fd96::2"], loadBalancerSourceRanges: [192.0.2.0/30, "2001:db8::/126"],`+
			` ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`,
			fmt.Sprintf(`status: {loadBalancer: {ingress: [{ip: %q}, {ip: %q}]}}`, balancer[0], balancer[1])),
		lab.Service("listed", `{type: LoadBalancer, clusterIPs: [10.96.0.3, "fd96::3"], loadBalancerSourceRanges: [203.0.113.0/24, "fd97::/64"],`+
			` ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`,
			fmt.Sprintf(`status: {loadBalancer: {ingress: [{ip: %q}, {ip: %q}]}}`, listed[0], listed[1])))
	for _, family := range families {
		for name, protocol := range protocols {
			for _, c := range []struct {
				program  string
				from, to netip.Addr
				allowed  bool
			}{
				{"bl_ingress", crafted[family].Addr(), balancer[family/6], true},
				{"bl_ingress", foreign[family].Addr(), balancer[family/6], false},
				{"bl_ingress", balancer[family/6], balancer[family/6], false},
				{"bl_egress", balancer[family/6], balancer[family/6], true},
				{"bl_egress", listed[family/6], balancer[family/6], false},
				{"bl_ingress", listed[family/6], listed[family/6], true},
				{"bl_ingress", balancer[family/6], listed[family/6], true},
			} {
				f := frame{from: netip.AddrPortFrom(c.from, 4242), to: netip.AddrPortFrom(c.to, 80), protocol: protocol, flags: flagSYN, payload: "hello"}
				before := reasonCount(t, b.maps, "source_range")
				verdict, _ := b.run(t, c.program, f.bytes())
				if refused := reasonCount(t, b.maps, "source_range") != before; refused == c.allowed {
					t.Errorf("%s at %s from %s to %s: verdict %d, allowed: %t, want %t", name, c.program, c.from, c.to, int32(verdict), !refused, c.allowed)
				}
			}
		}
	}
}
