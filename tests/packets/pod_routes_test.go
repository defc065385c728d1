package packets_test

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestRoutesOfAPod: a pod whose default route is not its node's, as one with a second interface, needs routes to Services, pods and
// nodes for its sockets, which are connected to endpoints. For its packets, as behind kube-proxy, those to Services are enough.
func TestRoutesOfAPod(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"sockets": nil,
		"packets": {"--socket-lb", "host-namespace-only", "--pod-devices", "gke*"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newGKE(t)
			pod := c.pods[0]
			run(t, pod.n, "sh", "-euc", "ip route del default; ip route add 10.96.0.0/16 via 10.244.1.1 dev eth0")
			c.serve(flags...)
			ask := func(routes string, unreachable bool) {
				t.Helper()
				for i, e := range c.endpoints()[1:] {
					for _, network := range []string{"tcp4", "udp4"} {
						got, err := askSoon(pod.n, network, frontendOf("ClusterIP", 2*i+3, network))
						if unreachable && err != unix.ENETUNREACH || !unreachable && (err != nil || got.name != e.name) {
							t.Errorf("%s with routes to %s, to the Service of %s: %v, %v", network, routes, e.name, got, err)
						}
					}
				}
			}
			ask("Services", flags == nil)
			run(t, pod.n, "sh", "-euc", "for to in 10.244.0.0/16 10.2.0.0/24; do ip route add $to via 10.244.1.1 dev eth0; done")
			ask("Services, pods and nodes", false)
		})
	}
}
