package netns_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/tests/lab"
)

// TestBrokenClusters: why a Service does not answer is found with two commands, of which the first
// shows the connection that fails; and a kube-proxy that still runs, by what it has made. docs/troubleshooting.md has them with what they print.
func TestBrokenClusters(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft")
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges, Devices: []string{lab.Uplink}})
	h.SetSysctl("ipv4/conf/all/forwarding", "1")
	h.Outside.AddRoute(netip.MustParsePrefix("203.0.113.0/24"), lab.Node4, "node")
	h.Pod.Populate()
	pod := `{addresses: ["10.88.0.2"], nodeName: node-1}`
	a.Apply(
		lab.Service("typo", `{clusterIP: 10.96.3.1, ports: [{name: http, port: 80}]}`), lab.Slice("typo", "http:8080/TCP"),
		lab.Service("guarded", `{type: NodePort, clusterIP: 10.96.3.2, ports: [{name: http, port: 80, nodePort: 31002}]}`), lab.SliceOf("guarded", "http:8080/TCP", pod),
		lab.Service("elsewhere", `{type: NodePort, clusterIP: 10.96.3.3, externalTrafficPolicy: Local, ports: [{name: http, port: 80, nodePort: 31003}]}`),
		lab.SliceOf("elsewhere", "http:8080/TCP", endpoints(elsewhere, elsewhere)("4")...),
		lab.Service("private", `{type: LoadBalancer, clusterIP: 10.96.3.4, loadBalancerSourceRanges: ["198.51.100.0/24"], ports: [{name: http, port: 80}]}`,
			"status: {loadBalancer: {ingress: [{ip: 203.0.113.4}]}}"), lab.SliceOf("private", "http:8080/TCP", pod))
	// As a network policy does that lets nobody in.
	for _, rule := range []string{
		"add table ip netpol", "add chain ip netpol forward { type filter hook forward priority 0; }", "add rule ip netpol forward ip daddr 10.88.0.2 drop",
	} {
		if out, err := h.Output("nft", strings.Fields(rule)...); err != nil {
			t.Fatalf("nft %s: %v\n%s", rule, err, out)
		}
	}
	for _, tt := range []struct {
		name    string
		from    *lab.Namespace
		to      netip.AddrPort
		monitor string // what is listened to
		seen    []string
		asked   string // the second command
		code    int
		said    []string
	}{
		{
			"wrong selector", h.Pod, ap("10.96.3.1:80"), "monitor --drops", []string{"refused", "(default/typo:http) no_endpoint: no endpoint of the Service can be used"},
			"explain default/typo", cli.ExitRefused, []string{"10.96.3.1:80/TCP: refused", "no endpoint"},
		},
		{
			"network policy", h.Outside, ap("192.0.2.1:31002"), "monitor --client 192.0.2.2", []string{"connection", "(default/guarded:http) -> 10.88.0.2:8080"},
			"flow list --service default/guarded", cli.ExitOK, []string{"10.88.0.2:8080", " new "},
		},
		{
			"no local endpoint", h.Outside, ap("192.0.2.1:31003"), "monitor --drops", []string{"dropped", "(default/elsewhere:http) no_local_endpoint: the policy is Local"},
			"explain --from 192.0.2.2 192.0.2.1:31003", cli.ExitDropped, []string{"on another node, and the policy is Local"},
		},
		{
			"source range", h.Outside, ap("203.0.113.4:80"), "monitor --drops", []string{"dropped", "(default/private:http) source_range: the client is not in loadBalancerSourceRanges"},
			"explain --from 192.0.2.2 203.0.113.4:80", cli.ExitDropped, []string{"198.51.100.0/24", "the client is in none of them"},
		},
	} {
		m := startMonitor(t, h, append(strings.Fields(tt.monitor)[1:], "--count", "1")...)
		s := tt.from.Socket("tcp4")
		if err := s.StartConnect(tt.to); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatal(err)
		}
		lab.Eventually(t, tt.name+": beeline "+tt.monitor+" shows it", m.done.Load)
		t.Logf("beeline %s\n%s", tt.monitor, &m.out)
		wantAll(t, tt.name+": beeline "+tt.monitor, m.out.String(), tt.seen)
		ask(t, h, tt.name, tt.asked, tt.code, tt.said)
		s.Close()
	}
	// Nothing fails while kube-proxy and Beeline serve the same: the first command is not monitor.
	for _, family := range []string{"ip", "ip6"} {
		if out, err := h.Output("nft", "add", "table", family, "kube-proxy"); err != nil {
			t.Fatalf("nft: %v\n%s", err, out)
		}
	}
	ask(t, h, "kube-proxy", "verify", cli.ExitNotFound, []string{
		"kube-proxy has made: table ip kube-proxy, table ip6 kube-proxy", "make sure that kube-proxy does not run", "beeline-agent --cleanup-kube-proxy",
	})
}

// ask runs beeline on a host, and reports another exit code and words that it does not say.
func ask(t *testing.T, h *lab.Host, name, words string, code int, said []string) {
	t.Helper()
	var out strings.Builder
	got := 0
	err := h.Run(func() error {
		got = cli.Run(t.Context(), cli.Env{Out: &out, Err: &out, Now: time.Now}, append([]string{"--bpffs", h.BPFFS}, strings.Fields(words)...)...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("beeline %s\n%s", words, &out)
	if got != code {
		t.Errorf("%s: beeline %s: exit code %d, want %d", name, words, got, code)
	}
	wantAll(t, name+": beeline "+words, out.String(), said)
}

// wantAll reports which of some texts a text does not have.
func wantAll(t *testing.T, what, text string, parts []string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s does not say %q:\n%s", what, part, text)
		}
	}
}
