// Package lockdown_test is what applications see where the kernel is locked down in mode
// confidentiality (kernel_lockdown(7)), as by Secure Boot of some distributions for Kubernetes:
// programs may not read the kernel's memory. The kernel stays so until the machine is off, so the
// tests run in the emulated ones, after all others.
package lockdown_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/maptest"
	"github.com/beeline-lb/beeline/tests/tier"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

const securityfs = "/sys/kernel/security"

// lockDown has the kernel let nobody read its memory.
func lockDown(t *testing.T) {
	t.Helper()
	if !tier.Emulated() {
		t.Skip("lockdown holds until the machine is off: the emulated kernels of make test-all have it")
	}
	if err := unix.Mount("securityfs", securityfs, "securityfs", 0, ""); err != nil && err != unix.EBUSY {
		t.Fatalf("mount %s: %v", securityfs, err)
	}
	name := securityfs + "/lockdown"
	modes, err := os.ReadFile(name)
	if err == nil && !strings.Contains(string(modes), "[confidentiality]") {
		err = os.WriteFile(name, []byte("confidentiality"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// algorithms are one that knows nothing of clients, and two that would read the kernel's memory.
var algorithms = []string{"random", "sh", "ewma"}

// TestLockdown: Services answer. With loadBalancerSourceRanges, a socket that is bound to an address is let
// in by it, and another one is not: nobody knows its address.
func TestLockdown(t *testing.T) {
	lockDown(t)
	if datapath.MayReadKernel() {
		t.Fatal("programs may read the kernel's memory")
	}
	h := lab.NewHost(t)
	h.ServeBackends()
	a := h.Serve(lab.AgentOptions{})
	for i, algorithm := range algorithms {
		service := lab.Service(algorithm, fmt.Sprintf(`{clusterIPs: [10.96.0.2%d, "fd96::2%d"], ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`, i, i))
		a.Apply(strings.Replace(service, "default}", "default, annotations: {service.beeline.io/algorithm: "+algorithm+"}}", 1),
			lab.Slice(algorithm, "t:8080/TCP,u:8080/UDP", lab.Backend4(1)), lab.Slice(algorithm, "t:8080/TCP,u:8080/UDP", lab.Backend6(1)))
	}
	a.Apply(lab.Service("guarded", `{type: LoadBalancer, clusterIPs: [10.96.0.10, "fd96::10"], ports: [{port: 80}],`+
		` loadBalancerSourceRanges: ["10.88.0.2/32", "fd88::2/128"]}`,
		`status: {loadBalancer: {ingress: [{ip: 203.0.113.10}, {ip: "2001:db8:2::10"}]}}`),
		lab.Slice("guarded", "8080/TCP", lab.Backend4(1)), lab.Slice("guarded", "8080/TCP", lab.Backend6(1)))

	for _, family := range []struct {
		number       string
		service      string
		backend      netip.Addr
		balancer, in string
	}{
		{"4", "10.96.0.2", lab.Backend4(1), "203.0.113.10", "10.88.0.2"},
		{"6", "fd96::2", lab.Backend6(1), "2001:db8:2::10", "fd88::2"},
	} {
		for i := range algorithms {
			to := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprint(family.service, i)), 80)
			for _, protocol := range []string{"tcp", "udp"} {
				for _, from := range []*lab.Namespace{h.Namespace, h.Pod} {
					if got, err := from.Reach(protocol+family.number, to); err != nil || got.Addr() != family.backend {
						t.Errorf("%s to %s: reached %v, %v", protocol, to, got, err)
					}
				}
			}
		}
		balancer := netip.AddrPortFrom(netip.MustParseAddr(family.balancer), 80)
		if got, err := h.Pod.Reach("tcp"+family.number, balancer); err != unix.EHOSTUNREACH {
			t.Errorf("from no address that is known to %s: reached %v, %v", balancer, got, err)
		}
		s := h.Pod.Socket("tcp" + family.number)
		if err := s.Bind(netip.AddrPortFrom(netip.MustParseAddr(family.in), 0)); err != nil {
			t.Fatal(err)
		}
		if err := s.Connect(balancer); err != nil {
			t.Errorf("from %s to %s: %v", family.in, balancer, err)
		}
		s.Close()
	}
}

// TestPrograms: the kernel takes the programs for sockets also with all that reads its memory elsewhere.
func TestPrograms(t *testing.T) {
	lockDown(t)
	m := maptest.New(t, maptest.Small)
	programs, err := datapath.LoadSockets(m, datapath.Constants{HostNetns: 1, LeaveNAT: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := programs.Close(); err != nil {
		t.Fatal(err)
	}
}
