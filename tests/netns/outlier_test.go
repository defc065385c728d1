package netns_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/lab"
)

// TestOutliers: connections of sockets that are refused eject the endpoint, of each family by itself;
// those that are answered do not.
func TestOutliers(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{Outliers: model.Outliers{Failures: 4, Time: time.Hour, Percent: 50}})
	for _, silent := range []string{"10.77.0.9/32", "fd77::9/128"} {
		h.AddAddr("lo", silent) // where nobody listens
	}
	a.Apply(dual,
		lab.Slice("dual", "web:8080/TCP,dns:8080/UDP", append(backends4(2), netip.MustParseAddr("10.77.0.9"))...),
		lab.Slice("dual", "web:8080/TCP,dns:8080/UDP", append(backends6(2), netip.MustParseAddr("fd77::9"))...))
	for i, network := range []string{"tcp4", "tcp6"} {
		to, left := dualTCP4, backends4(2)
		if network == "tcp6" {
			to, left = dualTCP6, backends6(2)
		}
		refused := 0
		lab.Eventually(t, fmt.Sprintf("%s: an endpoint is ejected", network), func() bool {
			_, err := h.Reach(network, to)
			if errors.Is(err, unix.ECONNREFUSED) {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
			return ejected(t, a) == i+1
		})
		if refused < 4 {
			t.Errorf("%s: after %d refused connections", network, refused)
		}
		wantBalanced(t, h.Namespace, network, to, left...)
	}
}

// ejected returns how many endpoints get no connections.
func ejected(t *testing.T, a *lab.Agent) int {
	t.Helper()
	have, err := a.Services().Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for id, b := range have.Backends {
		if a.Services().Outlier(id, b.Generation).Until != 0 && b.Weight == 0 {
			count++
		}
	}
	return count
}
