package packets_test

import (
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// TestFormerVersion: an agent takes over from one whose maps have another layout, and that one
// comes back: no packet of a flow is lost, and counters go on.
func TestFormerVersion(t *testing.T) {
	t.Parallel()
	lab.EachFormerAgent(t, func(t *testing.T, _, binary string) {
		c, present := serveCluster(t, func(c *cluster) []string { return c.service(1, "web", "", []endpoint{remote}) })
		before := *present
		before.former = binary
		c.restart(t, &before)
		const some = 20
		for range some {
			connect(t, c.client, "tcp4", nodePort("tcp4", 1))
		}
		c.restart(t, present)
		if n := c.connections(t, "web"); n < some {
			t.Errorf("%d connections are counted, of %d that the former version has counted", n, some)
		}
		c.restart(t, &before, present)
	})
}

// connections returns how many connections of a Service the first node has counted.
func (c *cluster) connections(t *testing.T, service string) (sum uint64) {
	t.Helper()
	maps, err := bpfmap.Open(datapath.Dir(c.nodes[0].BPFFS))
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	for id, name := range servicemap.New(maps).ServiceNames() {
		stats, err := statusmap.New(maps).ServiceStats(id + 1)
		if err != nil {
			t.Fatal(err)
		}
		if name.Port.Service.Name == service {
			sum += stats[id].Connections
		}
	}
	return sum
}
