package explain

import (
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/tests/maptest"
)

// TestVerifierMargin: the kernel checks a program in a tenth of the instructions that it checks at
// most, as those of the datapath.
func TestVerifierMargin(t *testing.T) {
	const most = 1_000_000 / 10
	m := maptest.New(t, maptest.Small)
	socket, err := load(m, bpf.ExplainSocketProgBlExplainSocket, bpf.LoadExplainSocket, nil)
	must(t, err)
	packet, err := load(m, bpf.ExplainPacketProgBlExplainPacket, bpf.LoadExplainPacket, map[string][]byte{
		bpf.ExplainPacketVarBlMasqueradeAll: {1}, bpf.ExplainPacketVarBlTunnelPort: {1, 1},
	})
	must(t, err)
	for _, o := range []*object{socket, packet} {
		info, err := o.program.Info()
		must(t, err)
		checked, known := info.VerifiedInstructions()
		if !known || checked > most {
			t.Errorf("%s: the kernel has checked %d instructions, want at most %d", info.Name, checked, most)
		}
		t.Logf("%s: %d", info.Name, checked)
		must(t, o.close())
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
