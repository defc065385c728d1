package netns_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestIPVSAdm: beeline service list -o ipvsadm shows the connections that are open.
func TestIPVSAdm(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	backends, to := backends4(1), algorithmFrontends[0].to
	a.Apply(withAlgorithm("lc", "sessionAffinity: ClientIP,"), annotate(lab.Slice("algorithm", algorithmPorts, backends...), "", "weight", "3"))
	for range 2 {
		hold(t, h.Namespace, "tcp4", to, backends)
	}
	var out, errs bytes.Buffer
	env := cli.Env{Out: &out, Err: &errs, Now: time.Now}
	if code := cli.Run(t.Context(), env, "--bpffs", h.BPFFS, "service", "list", "-o", "ipvsadm"); code != cli.ExitOK {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	want := "TCP 10.96.0.40:80 lc persistent 10800 -> " + backends[0].String() + ":8080 Masq 3 2 -"
	if !strings.Contains(text, want) {
		t.Errorf("%q is not in\n%s", want, out.String())
	}
}
