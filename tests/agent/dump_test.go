package agent_test

import (
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// changing are the maps that traffic or the agent's life writes.
var changing = []string{"bl_agent", "bl_counter", "bl_service_stat", "bl_affinity", "bl_udp_peer", "bl_udp_sock", "bl_sock", "bl_tracking", "bl_config", "bl_status"}

// frontends returns the addresses and ports that are served.
func frontends(t *testing.T, h *lab.Host) map[netip.AddrPort]bool {
	t.Helper()
	m, err := bpfmap.Open(datapath.Dir(h.BPFFS))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	snapshot, err := servicemap.New(m).Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	served := make(map[netip.AddrPort]bool)
	for key := range snapshot.Frontends {
		if key.Port != 0 {
			served[netip.AddrPortFrom(key.Addr, key.Port)] = true
		}
	}
	return served
}
