package verify_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// TestOutliers: an endpoint at which nobody listens is ejected after two refused connections of each
// family, also of a client with session affinity, which goes to another one. It stays so without an
// agent and with the next one, and that is no finding. A Service without the annotation keeps its own.
func TestOutliers(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	for i := 2; i <= 3; i++ {
		h.ServeTCP(netip.AddrPortFrom(lab.Backend4(i), lab.BackendPort))
		h.ServeTCP(netip.AddrPortFrom(lab.Backend6(i), lab.BackendPort))
	}
	var manifests []string
	for name, address := range map[string]string{"watched": "1", "sticky": "2", "plain": "3"} {
		spec := `{clusterIPs: [10.96.0.` + address + `, "fd96::` + address + `"], ipFamilies: [IPv4, IPv6], ports: [{name: t, port: 80}]`
		if name == "sticky" {
			spec += ", sessionAffinity: ClientIP"
		}
		service := lab.Service(name, spec+"}")
		if name != "plain" {
			service = strings.Replace(service, "namespace: default", `namespace: default, annotations: {service.beeline.io/outlier-detection: "failures=2,time=1h"}`, 1)
		}
		manifests = append(manifests, service,
			lab.Slice(name, "t:8080/TCP", lab.Backend4(1), lab.Backend4(2), lab.Backend4(3)),
			lab.Slice(name, "t:8080/TCP", lab.Backend6(1), lab.Backend6(2), lab.Backend6(3)))
	}
	n := serve(t, h, manifests, "--allowed-annotations", "service.beeline.io/outlier-detection")
	reach := func(network, service string) (netip.Addr, error) {
		to := netip.MustParseAddrPort("10.96.0." + service + ":80")
		if network == "tcp6" {
			to = netip.MustParseAddrPort("[fd96::" + service + "]:80")
		}
		got, err := h.Reach(network, to)
		if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatal(err)
		}
		return got.Addr(), err
	}
	for _, service := range []string{"1", "2"} {
		for i, network := range []string{"tcp4", "tcp6"} {
			want := int(2*(service[0]-'1')) + i + 1 // so many are ejected then
			lab.Eventually(t, network+" to Service "+service+": an endpoint is ejected", func() bool {
				if n.ejected(t) == want {
					return true
				}
				if _, err := reach(network, service); err == nil && service == "2" {
					// Until the client has affinity for the one that refuses.
					h.AgeAffinity(4 * time.Hour)
				}
				return false
			})
		}
	}
	for _, agent := range []string{"an agent", "no agent", "the next agent"} {
		switch agent {
		case "no agent":
			n.Signal(unix.SIGKILL)
			_ = n.Wait()
		case "the next agent":
			n.Standalone.Start("--allowed-annotations", "service.beeline.io/outlier-detection")
		}
		n.wantNothing(t, agent)
		for _, network := range []string{"tcp4", "tcp6"} {
			for _, service := range []string{"1", "2", "3"} {
				refused := 0
				for range 60 {
					if _, err := reach(network, service); err != nil {
						refused++
					}
				}
				// Of 60 connections none goes to one of three once in 10^10 times.
				if (refused > 0) != (service == "3") {
					t.Errorf("%s, %s: %d connections to Service %s are refused", agent, network, refused, service)
				}
			}
		}
	}
}

// ejected returns how many endpoints are, each after at least two failures.
func (n *node) ejected(t *testing.T) int {
	t.Helper()
	ejected := 0
	for _, b := range n.backends(t) {
		if b.Outlier == nil || !b.Outlier.Ejected || b.Weight != 0 {
			continue
		}
		ejected++
		if b.Address != lab.Backend4(1) && b.Address != lab.Backend6(1) {
			t.Errorf("ejected is %+v", b)
		}
	}
	return ejected
}
