package main

import (
	"io"
	"strings"
	"testing"
)

// TestWrongFlagsAreRefused starts the agent with values that it must not accept; the
// error names the flag and what is wrong with the value.
func TestWrongFlagsAreRefused(t *testing.T) {
	for _, tc := range []struct {
		args string
		want []string
	}{
		{"--manifests /m --kubeconfig /k", []string{"--manifests", "cannot be combined", "--kubeconfig"}},
		{"--node-ip 10.0.0.0/8", []string{"--node-ip", `"10.0.0.0/8" is no IP address`}},
		{"--nodeport-addresses 10.0.0.1", []string{"--nodeport-addresses", "element 1", "10.0.0.1"}},
		{"--nodeport-addresses primary,10.0.0.0/8", []string{"--nodeport-addresses", "element 1", "primary"}},
		{"--service-cluster-ip-range 10.96.0.0/33", []string{"--service-cluster-ip-range", "10.96.0.0/33"}},
		{"--node-ip x --service-cluster-ip-range y", []string{"--node-ip", "--service-cluster-ip-range"}},
		{"--hostname-override=\t", []string{"--hostname-override", "empty"}},
		{"--min-sync-period fast", []string{"--min-sync-period", "fast"}},
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
