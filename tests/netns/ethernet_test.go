package netns_test

import (
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

// TestWithoutEthernet: clients and backends of other machines may be behind a device whose packets have no Ethernet
// header, and reach those behind a device with one, and each other.
func TestWithoutEthernet(t *testing.T) {
	t.Parallel()
	w := newWires(t, lab.Uplink, lab.NewHost(t), nil)
	const mesh = "mesh"
	w.AddTUN(mesh, w.Outside, 0)
	for _, family := range families {
		w.AddAddr(mesh, w.prefix(1, family, 1))
		w.Outside.AddAddr(mesh, w.prefix(1, family, 2))
		w.Outside.AddAddr(mesh, w.prefix(1, family, 3))
	}
	w.devices = append(w.devices, mesh)
	w.checkAll(t, w.serve(t, lab.AgentOptions{Devices: w.devices}), false)
}
