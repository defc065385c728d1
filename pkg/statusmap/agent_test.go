package statusmap

import (
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/tests/bpffs"
	"github.com/beeline-lb/beeline/tests/maptest"
)

func TestAgent(t *testing.T) {
	dir := bpffs.New(t)
	m := maptest.Load(t, dir, maptest.Small)
	want := Agent{
		TunnelPort: 6091, KeepsSockets: true,
		PID: 42, Started: time.Unix(1, 2), Version: "v1.2.3", Node: strings.Repeat("n", 253),
		Source: "/manifests", Cgroup: "/sys/fs/cgroup",
	}
	New(m).SetAgent(want)
	if got := New(m).Agent(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	New(m).SetSynced(time.Unix(3, 4), 5)
	New(m).SetSynced(time.Unix(5, 6), 7)
	want.Synced, want.Syncs, want.Pending = time.Unix(5, 6), 2, 7
	m = maptest.Reload(t, m, dir, maptest.Small)
	if got := New(m).Agent(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
