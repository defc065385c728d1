package netns_test

import (
	"context"
	"testing"

	"github.com/beeline-lb/beeline/pkg/drain"
	"github.com/beeline-lb/beeline/pkg/flow"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestSocketsOfLeftNode: when Beeline leaves a node, UDP sockets that Services have connected to endpoints are
// destroyed, for nobody would be there when these go. Others stay.
func TestSocketsOfLeftNode(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(context.Context, string) ([]string, error){
		"cleanup": drain.Cleanup,
		"drain": func(ctx context.Context, bpffs string) ([]string, error) {
			return drain.Run(ctx, drain.Options{BPFFS: bpffs, Timeouts: flow.DefaultTimeouts, Waiting: func(int) {}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "drain" {
				tier.SameInEveryKernel(t)
			}
			h, a := newHost(t, lab.AgentOptions{})
			applyGone(a, 1)
			through, kept := make(map[*lab.Socket]string), make(map[*lab.Socket]string)
			for where, n := range map[string]*lab.Namespace{"node": h.Namespace, "pod": h.Pod} {
				n.Populate()
				through[connected(t, n, "udp4", goneUDP4)] = where + ", IPv4"
				through[connected(t, n, "udp6", goneUDP6)] = where + ", IPv6"
				kept[connected(t, n, "udp4", backendPort(lab.Backend4(1)))] = where + ", to the endpoint itself"
				tcp := n.Socket("tcp4")
				if err := tcp.Connect(goneTCP4); err != nil {
					t.Fatal(err)
				}
				kept[tcp] = where + ", TCP"
			}
			a.Stop()
			if err := h.Run(func() error {
				_, err := leave(t.Context(), h.BPFFS)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			for s, what := range through {
				wantDestroyed(t, what, s)
			}
			for s, what := range kept {
				wantKept(t, what, s)
			}
		})
	}
}
