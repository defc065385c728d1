package agent_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// contains reports whether text has all parts.
func contains(text string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}

// wantRefusal waits for the end of a process, which must be a failure whose
// message has all parts.
func wantRefusal(t *testing.T, p *lab.Process, parts ...string) {
	t.Helper()
	lab.Eventually(t, "the refusal", p.Ended)
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v, want exit code 1", err)
	}
	if !contains(p.Output(), parts...) {
		t.Errorf("the message lacks some of %q:\n%s", parts, p.Output())
	}
}

// TestSecondAgent: a second agent on the same pins is refused with the pid of the
// first, which goes on.
func TestSecondAgent(t *testing.T) {
	t.Parallel()
	h, s := start(t)
	wantRefusal(t, s.Launch("--metrics-bind-address=", "--healthz-bind-address="),
		fmt.Sprintf("pid %d", s.PID()), h.BPFFS, "--bpffs")
	if s.Ended() {
		t.Error("the first agent has ended")
	}
	mustReach(t, h, "tcp4", webTCP)
}

// TestTwoPlaces: agents with different pins and cgroups do not meet.
func TestTwoPlaces(t *testing.T) {
	t.Parallel()
	h, _ := start(t)
	other := lab.NewHost(t)
	other.ServeBackends()
	second := other.NewStandalone(lab.Service("web", `{clusterIP: 10.96.0.1, ports: [{port: 80}]}`),
		lab.Slice("web", "8080/TCP", lab.Backend4(8)))
	second.Start()
	for range 10 {
		if got := mustReach(t, other, "tcp4", webTCP); got.Addr() != lab.Backend4(8) {
			t.Errorf("the second host reached %s", got)
		}
		if got := mustReach(t, h, "tcp4", webTCP); got.Addr() == lab.Backend4(8) {
			t.Errorf("the first host reached %s", got)
		}
	}
}

// TestCleanup: --cleanup leaves no pin, and sockets do what they did before. It
// is refused while an agent runs.
func TestCleanup(t *testing.T) {
	t.Parallel()
	h, s := start(t)
	cleanup := func() *lab.Process {
		return h.Start(lab.AgentBinary(t), "--cleanup", "--bpffs", h.BPFFS)
	}
	wantRefusal(t, cleanup(), fmt.Sprintf("pid %d", s.PID()))
	mustReach(t, h, "tcp4", webTCP)

	s.Signal(unix.SIGTERM)
	if err := s.Wait(); err != nil {
		t.Fatal(err)
	}
	first := cleanup()
	if err := first.Wait(); err != nil || !contains(first.Output(), "removed", "link_bl_connect4", "bl_frontend") {
		t.Errorf("--cleanup: %v\n%s", err, first.Output())
	}
	if left, err := os.ReadDir(h.BPFFS); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	h.Outside.AddAddr("lo", "10.96.0.1/32")
	h.Outside.ServeTCP(webTCP)
	lab.Eventually(t, "connect() goes where it is told", func() bool {
		got, err := h.Reach("tcp4", webTCP)
		return err == nil && got == webTCP
	})
	again := cleanup()
	if err := again.Wait(); err != nil || !contains(again.Output(), "nothing to remove") {
		t.Errorf("--cleanup of nothing: %v\n%s", err, again.Output())
	}
}

// TestWrongPlaces: a folder that does not fit is refused with what to do.
func TestWrongPlaces(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	s := h.NewStandalone(web)
	plain := t.TempDir()
	missing := filepath.Join(plain, "missing")
	cases := map[string]struct {
		flags []string
		parts []string
	}{
		"bpffs is none":     {[]string{"--bpffs", plain}, []string{plain, "mount -t bpf", "--bpffs"}},
		"bpffs is missing":  {[]string{"--bpffs", missing}, []string{missing, "does not exist", "--bpffs"}},
		"cgroup is none":    {[]string{"--cgroup-root", plain}, []string{plain, "cgroup2", "--cgroup-root"}},
		"cgroup is missing": {[]string{"--cgroup-root", missing}, []string{missing, "--cgroup-root"}},
		"node port address": {[]string{"--nodeport-addresses", "x"}, []string{"--nodeport-addresses", `"x"`}},
		"service range":     {[]string{"--service-cluster-ip-range", "10.0.0.0"}, []string{"--service-cluster-ip-range", "10.0.0.0"}},
		"two sources":       {[]string{"--kubeconfig", "x"}, []string{"--manifests", "--kubeconfig"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { wantRefusal(t, s.Launch(c.flags...), c.parts...) })
	}
	if left, err := os.ReadDir(filepath.Join(h.BPFFS, "beeline")); err == nil && len(left) > 1 {
		t.Errorf("left behind: %v", left)
	}
}

// TestNodePortAssigned: a Service that asks for no addresses is served at those
// that it was assigned, which a restart keeps.
func TestNodePortAssigned(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	h.ServeBackends()
	s := h.NewStandalone(lab.Service("auto", `{type: NodePort, ports: [{port: 80, targetPort: 8080}]}`),
		lab.Slice("auto", "8080/TCP", lab.Backend4(1)))
	s.Start()
	before := frontends(t, h)
	if len(before) != 2 {
		t.Fatalf("frontends: %v, want a cluster IP and a node port", before)
	}
	s.Signal(unix.SIGKILL)
	_ = s.Wait() // killed
	s.Start()
	after := frontends(t, h)
	for at := range before {
		if !after[at] {
			t.Errorf("%s is gone after the restart, there is %v", at, after)
		}
		if at.Addr().IsUnspecified() {
			at = netip.AddrPortFrom(lab.Node4, at.Port())
		}
		mustReach(t, h, "tcp4", at)
	}
}
