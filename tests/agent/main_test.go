// Package agent_test runs the real beeline-agent: its start, its end, and what
// goes on meanwhile. It needs root.
package agent_test

import (
	"net/netip"
	"os"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// web is a Service of two protocols, sticky one with session affinity.
var (
	web = lab.Service("web", `{clusterIP: 10.96.0.1, ports: [`+
		`{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]}`)
	webSlice = lab.Slice("web", "web:8080/TCP,dns:8080/UDP", backends(4)...)

	sticky = lab.Service("sticky", `{clusterIP: 10.96.0.2, sessionAffinity: ClientIP,`+
		` ports: [{port: 80}]}`)
	stickySlice = lab.Slice("sticky", "8080/TCP", backends(8)...)

	webTCP    = netip.MustParseAddrPort("10.96.0.1:80")
	webUDP    = netip.MustParseAddrPort("10.96.0.1:53")
	stickyTCP = netip.MustParseAddrPort("10.96.0.2:80")
)

// backends are the first IPv4 backends of a host.
func backends(n int) (addrs []netip.Addr) {
	for i := range n {
		addrs = append(addrs, lab.Backend4(i+1))
	}
	return addrs
}

// start makes a host with backends and an agent that serves both Services.
func start(t *testing.T) (*lab.Host, *lab.Standalone) {
	t.Helper()
	h := lab.NewHost(t)
	h.ServeBackends()
	s := h.NewStandalone(web, webSlice, sticky, stickySlice)
	s.Start()
	return h, s
}

// mustReach connects to an address and returns which backend answers.
func mustReach(t *testing.T, h *lab.Host, network string, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	got, err := h.Reach(network, to)
	if err != nil {
		t.Fatalf("%s to %s: %v", network, to, err)
	}
	return got
}

// reachable reports whether the address answers.
func reachable(h *lab.Host, to netip.AddrPort) func() bool {
	return func() bool {
		_, err := h.Reach("tcp4", to)
		return err == nil
	}
}

// fails reports whether connect() to the address fails with the error.
func fails(h *lab.Host, to netip.AddrPort, want error) func() bool {
	return func() bool {
		_, err := h.Reach("tcp4", to)
		return err == want
	}
}
