package packets_test

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// newTracedCluster makes a cluster where each of many neighbouring node ports leads
// through a tunnel to a pod at which nobody listens.
func newTracedCluster(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t, true)
	for family, overlayRange := range []string{"10.243.0.0/24", "fd43::/64"} {
		c.router.AddRoute(netip.MustParsePrefix(overlayRange), nodeAddrs(2)[family], "nodes")
	}
	var manifests []string
	for i := range 40 {
		manifests = append(manifests, c.service(i+1, fmt.Sprintf("far-%d", i+1), "", []endpoint{remote})...)
	}
	startAgent(t, c.nodes[0], manifests)
	return c
}

// hops returns the addresses of the routers on the path to the pod, and last the node
// port's.
func (c *cluster) hops(network string) []string {
	router := map[byte]string{'4': "10.1.0.1", '6': "fd01::1"}[network[3]]
	return []string{router, nodeAddrs(1).of(network).String(), overlayAddrs(2).of(network).String(), nodeAddrs(1).of(network).String()}
}

// TestTraceroute: traceroute to a NodePort with a backend on the other node shows every router, and
// the NodePort's address as the last hop.
func TestTraceroute(t *testing.T) {
	t.Parallel()
	lab.Need(t, "traceroute")
	c := newTracedCluster(t)
	hop := regexp.MustCompile(`(?m)^ *\d+ +(?:\* +)*([0-9a-f.:]+)  `) // of three probes, one may get lost
	for _, network := range networks {
		kind := map[string]string{"tcp": "-T", "udp": "-U"}[network[:3]]
		out, err := c.client.Output("traceroute", kind, "-n", "-q", "3", "-N", "1", "-m", "8", "-w", "3",
			"-p", fmt.Sprint(nodePort(network, 1).Port()), nodeAddrs(1).of(network).String())
		var got []string
		for _, match := range hop.FindAllStringSubmatch(out, -1) {
			got = append(got, match[1])
		}
		if err != nil || !slices.Equal(got, c.hops(network)) {
			t.Errorf("%s: hops %v, %v, want %v:\n%s", network, got, err, c.hops(network), out)
		}
	}
}

// TestTracepath: path MTU discovery finds the MTU of the tunnel.
func TestTracepath(t *testing.T) {
	t.Parallel()
	lab.Need(t, "tracepath")
	c := newTracedCluster(t)
	for _, network := range networks[2:] {
		out, err := c.client.Output("tracepath", "-n", "-m", "8", "-p", fmt.Sprint(nodePort(network, 1).Port()), nodeAddrs(1).of(network).String())
		at := 0
		for _, part := range append(c.hops(network), "reached", "Resume: pmtu 1450") {
			next := strings.Index(out[at:], part)
			if err != nil || next < 0 {
				t.Errorf("%s: %v, %q is missing or out of order:\n%s", network, err, part, out)
				break
			}
			at += next
		}
	}
}

// TestDig asks a real name server on this node and on the other one, by UDP and TCP.
func TestDig(t *testing.T) {
	tier.Slow(t, "starts hundreds of processes")
	t.Parallel()
	lab.Need(t, "dig", "dnsmasq")
	c := newCluster(t, true)
	startAgent(t, c.nodes[0], append(c.service(1, "near", "", []endpoint{otherLocal}), c.service(2, "far", "", []endpoint{remote})...))
	long := strings.Repeat("x", 250)
	for _, e := range []endpoint{otherLocal, remote} {
		args := []string{"--keep-in-foreground", "--no-hosts", "--no-resolv", "--port", fmt.Sprint(backendPort), "--edns-packet-max=8192",
			"--conf-file=/dev/null", "--pid-file=", "--user=root", "--address=/where.test/" + c.addrsOf(e)[0].String()}
		for i := range 12 {
			args = append(args, fmt.Sprintf("--txt-record=long.test,%d%s", i, long))
		}
		c.podOf(e).Start("dnsmasq", args...)
	}
	for i, e := range []endpoint{otherLocal, remote} {
		for _, f := range frontends {
			for _, network := range networks {
				ask := func(name string) string {
					args := []string{"@" + f.address(i+1).of(network).String(), "-p", fmt.Sprint(f.port(i + 1)), "+short", "+bufsize=8192", "+time=1", "+tries=1", "+ignore"}
					if network[:3] == "tcp" {
						args = append(args, "+tcp")
					}
					out, _ := c.client.Output("dig", append(args, strings.Fields(name)...)...)
					return out
				}
				lab.Eventually(t, fmt.Sprintf("%s by %s of %s answers", network, f.name, e.server()), func() bool {
					return ask("where.test A") == c.addrsOf(e)[0].String()+"\n"
				})
				// By UDP this takes three packets, the first time too big ones for the tunnel.
				lab.Eventually(t, fmt.Sprintf("%s by %s of %s answers at length", network, f.name, e.server()), func() bool {
					return strings.Count(ask("long.test TXT"), long) == 12
				})
			}
		}
	}
}
