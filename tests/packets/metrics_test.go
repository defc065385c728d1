package packets_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

// TestBackendMetrics: the backends with the most open connections of clients outside of the node have
// a metric of their own, as many as are asked for.
func TestBackendMetrics(t *testing.T) {
	t.Parallel()
	at := []endpoint{local, remote, otherRemote}
	c, _ := serveCluster(t, func(c *cluster) (manifests []string) {
		for i := range at {
			manifests = append(manifests, c.service(i+1, fmt.Sprint("web-", i+1), "", at[i:i+1])...)
		}
		return manifests
	}, "--service-metrics-limit=100", "--service-metrics-backends=2")
	open := make(map[*lab.Socket]bool)
	for service, n := range map[int]int{1: 1, 2: 3, 3: 2} {
		for range n {
			s, _ := connect(t, c.client, "tcp4", nodePort("tcp4", service))
			open[s] = true
		}
	}
	series := func(service, connections int) string {
		return fmt.Sprintf(`endpoint="%s:%d",ip_family="IPv4",namespace="default",port="t",protocol="TCP",service="web-%d"} %d`,
			c.addrsOf(at[service-1]).of("tcp4"), backendPort, service, connections)
	}
	c.awaitBackends(t, "the two with the most", func(got []string) bool {
		return slices.Equal(got, []string{series(2, 3), series(3, 2)})
	})
	for s := range open {
		s.Close()
	}
	c.awaitBackends(t, "two with none", func(got []string) bool {
		return len(got) == 2 && strings.HasSuffix(got[0], " 0") && strings.HasSuffix(got[1], " 0")
	})
}

// awaitBackends waits for metrics of backends at the first node, without their name.
func (c *cluster) awaitBackends(t *testing.T, what string, ok func([]string) bool) {
	t.Helper()
	var got []string
	defer func() {
		if t.Failed() {
			t.Logf("%s: last seen %q", what, got)
		}
	}()
	lab.Eventually(t, what, func() bool {
		text, err := c.nodes[0].metrics()
		if err != nil {
			return false
		}
		got = got[:0]
		for line := range strings.Lines(text) {
			if series, ok := strings.CutPrefix(line, "beeline_backend_connections{"); ok {
				got = append(got, strings.TrimSpace(series))
			}
		}
		return ok(got)
	})
}
