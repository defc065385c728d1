package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrongFlagsAreRejected starts the agent with values that it must not accept; the
// error names the flag and what is wrong with the value.
func TestWrongFlagsAreRejected(t *testing.T) {
	for _, tc := range []struct {
		args string
		want []string
	}{
		{"--manifests /m --kubeconfig /k", []string{"--manifests", "cannot be combined", "kubeconfig"}},
		{"--node-ip 10.0.0.0/8", []string{"--node-ip[0]", `"10.0.0.0/8": must be an IP address`}},
		{"--node-ip 10.0.0.1,10.0.0.2", []string{"--node-ip[1]", "second IP of its family"}},
		{"--node-ip 10.0.0.1 --bind-address 10.0.0.2", []string{"--bind-address", "second IP of its family"}},
		{"--nodeport-addresses 10.0.0.1", []string{"--nodeport-addresses[0]", "10.0.0.1", "CIDR"}},
		{"--nodeport-addresses primary,10.0.0.0/8", []string{"--nodeport-addresses[0]", `"primary" alone`}},
		{"--service-cluster-ip-range 10.96.0.0/33", []string{"--service-cluster-ip-range[0]", "10.96.0.0/33"}},
		{"--node-ip x --service-cluster-ip-range y", []string{"--node-ip", "--service-cluster-ip-range"}},
		{"--hostname-override=\t", []string{"--hostname-override", "empty"}},
		{"--detect-local-mode NodeCIDR --manifests /m", []string{"--detect-local-mode", "NodeCIDR", "API server", "manifests"}},
		{"--detect-local-mode BridgeInterface", []string{"bridgeInterface"}},
		{"--detect-local-mode InterfaceNamePrefix", []string{"interfaceNamePrefix"}},
		{"--detect-local-mode Magic", []string{"--detect-local-mode", "Magic", "ClusterCIDR", "NodeCIDR"}},
		{"--cluster-cidr 10.0.0.0/8,x", []string{`--cluster-cidr[1]: Invalid value: "x"`}},
		{"--metrics-bind-address localhost:1", []string{"--metrics-bind-address", "localhost"}},
		{"--healthz-bind-address 0.0.0.0:70000", []string{"--healthz-bind-address", "65535"}},
		{"--conntrack-udp-timeout 1ms --conntrack-tcp-timeout-established -1h", []string{
			`--conntrack-udp-timeout: Invalid value: "1ms"`, `--conntrack-tcp-timeout-established: Invalid value: "-1h0m0s"`, "1s"}},
		{"--oom-score-adj 1001", []string{"--oom-score-adj", "from -1000 to 1000"}},
		{"--proxy-mode kernelspace", []string{"--proxy-mode", "kernelspace", "nftables"}},
		{"--sync-period 0", []string{"--sync-period", "more than 0"}},
		{"--iptables-min-sync-period 1h", []string{"--iptables-min-sync-period", "1h0m0s", "30s"}},
		{"--socket-lb none", []string{"--socket-lb", "host-namespace-only"}},
		{"--snat-port-range 9-1", []string{"--snat-port-range", "9-1"}},
		{"--logging-format xml", []string{"--logging-format", "xml"}},
		{"--min-sync-period fast", []string{"--min-sync-period", "fast"}},
		{"--config /no/such/file", []string{"--config", "/no/such/file"}},
		{"--config ../../pkg/config/testdata/kubeadm.yaml --manifests /m", []string{"--manifests", "cannot be combined"}},
		{"--no-such-flag", []string{"--no-such-flag"}},
		{"argument", []string{"argument"}},
	} {
		t.Run(tc.args, func(t *testing.T) {
			cmd := newCommand(io.Discard)
			cmd.SetArgs(strings.Split(tc.args, " "))
			err := cmd.ExecuteContext(t.Context())
			if err == nil {
				t.Fatal("got no error")
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
		})
	}
}

// TestWriteConfig writes what files and flags lead to.
func TestWriteConfig(t *testing.T) {
	written := filepath.Join(t.TempDir(), "written.yaml")
	cmd := newCommand(io.Discard)
	cmd.SetArgs([]string{"--config", "../../pkg/config/testdata/partial.yaml", "--cluster-cidr", "fd00::/8", "--write-config-to", written})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(written)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"clusterCIDR: fd00::/8", "mode: nftables", "snatPortRange: 1024-65535", "maxFlows: 1000"} {
		if !strings.Contains(string(content), line+"\n") {
			t.Errorf("no line %q in\n%s", line, content)
		}
	}
}
