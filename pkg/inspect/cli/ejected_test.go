package cli_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/servicetest"
)

// TestEjected: service show says that an endpoint is ejected, and for how long.
func TestEjected(t *testing.T) {
	services := fixture()
	busy := services[slices.IndexFunc(services, func(s served) bool { return s.service.Name.Name == "busy" })].service
	busy.Outliers = &model.Outliers{Failures: 5, Time: 30 * time.Second, Percent: 50}
	busy.Ejected = map[netip.AddrPort]bool{netip.MustParseAddrPort("10.0.2.7:8080"): true}
	bpffs, maps := pinned(t, services)
	store := servicetest.Open(t, maps)
	clock, err := store.Now()
	check(t, err)
	check(t, store.PutOutlier(11, 1, tables.Outlier{Failures: 6, Until: clock + 30*time.Hour, Times: 2}))

	for command, want := range map[string]string{
		"service show kube-system/busy":         "10.0.2.7:8080   11   ready,ejected for 29h",
		"service show kube-system/busy -o json": `"ejectedSeconds": 107`, // and three digits more
		"backend list":                          "11   kube-system/busy           10.0.2.7:8080      ready,ejected for 29h",
	} {
		out, errs, code := run(append([]string{"--bpffs", bpffs}, strings.Fields(command)...)...)
		if code != cli.ExitOK || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d, no %q in\n%s%s", command, code, want, out, errs)
		}
	}
}
