package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/bits"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/tests/wait"
)

// Events as beeline monitor prints them.
const (
	connectionEvent = `{"time":"2026-03-01T12:00:00Z","kind":"connection","hook":"connect","protocol":"TCP","pid":7,"command":"curl","serviceAddress":"10.96.0.20:80",` +
		`"service":{"namespace":"shop","service":"web","portName":"http","port":80,"protocol":"TCP","family":"IPv4","serviceID":1},"backend":"10.0.2.1:8080"}` + "\n"
	tunnelEvent = `{"time":"2026-03-01T12:00:00Z","kind":"ended","hook":"tc","protocol":"TCP","client":"192.0.2.7:5000","serviceAddress":"10.96.0.20:80","tunnelNode":"node-x"}` + "\n"
	forgedEvent = `{"time":"2026-03-01T12:00:00Z","kind":"refused","hook":"connect","protocol":"TCP","pid":8,"command":"a\nnode-a \u001b[2J","serviceAddress":"10.96.0.30:80"}` + "\n"
	manyEvents  = `{"time":"2026-03-01T12:00:00Z","kind":"left-out","leftOut":5}` + "\n"
)

// listens returns a program that does as beeline monitor: it listens, prints events and goes on until
// its standard input ends, which it counts.
func listens(ends *atomic.Int32, events ...string) program {
	return func(_ *http.Request, _ []string, in io.Reader, out, _ io.Writer) int {
		for _, line := range append([]string{"\n"}, events...) {
			_, _ = io.WriteString(out, line) // the client may have left
		}
		_, _ = io.Copy(io.Discard, in)
		ends.Add(1)
		return 0
	}
}

// sorted returns lines in an order that does not depend on which node was first.
func sorted(text string) string { return strings.Join(slices.Sorted(strings.Lines(text)), "") }

// TestPluginMonitor: the events of all nodes are shown with their nodes, and nodes that have ended are
// named with the reason.
func TestPluginMonitor(t *testing.T) {
	s := newAPIServer(t)
	s.agent("node-a", prints("\n"+connectionEvent+tunnelEvent, cli.ExitFailure))
	s.agent("node-bb", prints("\n"+forgedEvent+manyEvents, cli.ExitFailure))
	s.agent("node-c", prints("beeline: unknown flag: --until-eof\x1b[31m", cli.ExitUsage))
	s.agent("node-d", prints("\nnothing\n", cli.ExitOK))
	s.agent("node-e", prints("\n"+strings.Repeat("x", 64<<10)+"\n", cli.ExitOK))
	s.agent("node-f", nil)
	pending := s.pods["kube-system/beeline-node-f"]
	pending.Status = corev1.PodStatus{Phase: corev1.PodPending}
	s.add(pending, nil)
	for _, args := range []string{"monitor", "monitor --node node-a -o json", "monitor --node node-bb -o yaml", "monitor --node node-a --node node-bb -o wide"} {
		t.Run(args, func(t *testing.T) {
			out, errs, code := s.run(strings.Fields(args)...)
			if !strings.Contains(args, "yaml") {
				out = sorted(out)
			}
			noon := now.Local().Format("15:04:05.000000")
			out = strings.ReplaceAll(out, noon, "12:00:00.000000")
			compareGolden(t, "plugin_"+strings.Join(strings.Fields(args), "_"), fmt.Sprintf("$ kubectl beeline %s\n%s%sexit code %d\n", args, out, sorted(errs), code))
		})
	}
	for _, args := range []string{"monitor --help", "monitor extra", "monitor --drops --kind ended", "monitor --service web", "monitor --client there", "monitor -n nowhere"} {
		t.Run(args, func(t *testing.T) { comparePlugin(t, s, args) })
	}
}

// TestPluginMonitorFlags: the nodes get the flags that say which events are meant.
func TestPluginMonitorFlags(t *testing.T) {
	s := newAPIServer(t)
	s.agent("node-a", prints("", cli.ExitOK), "--bpffs=/run/bpf")
	for args, want := range map[string]string{
		"monitor --count=2 --node=node-a -o yaml":                                    "",
		"monitor --kind=ended,refused --reason no_endpoint --reason undeclared_port": " --kind=ended,refused --reason=no_endpoint,undeclared_port",
		"monitor --drops --service shop/web --protocol udp --rate=5 --sample 3":      " --drops=true --protocol=udp --rate=5 --sample=3 --service=shop/web",
		"monitor --client 192.0.2.0/24 --backend [fd00::1]:80 --timeout 1m":          " --backend=[fd00::1]:80 --client=192.0.2.0/24",
	} {
		_, errs, code := s.run(strings.Fields(args)...)
		if code != cli.ExitFailure || !strings.Contains(errs, "node-a: pod beeline-node-a: beeline monitor has ended") {
			t.Errorf("%s: exit code %d, said %q", args, code, errs)
		}
		if want := "beeline --output=json --bpffs=/run/bpf monitor --until-eof" + want; s.command() != want {
			t.Errorf("%s: ran %q, want %q", args, s.command(), want)
		}
	}
}

// TestPluginMonitorService: a Service that the cluster does not have is named, and its events are waited
// for; who may not read Services is told nothing.
func TestPluginMonitorService(t *testing.T) {
	const missing = "kubectl beeline: no events yet: the cluster has no service shop/wed\n"
	s := newAPIServer(t)
	s.services = []corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}}
	var ends atomic.Int32
	s.agent("node-a", listens(&ends, connectionEvent))
	for _, tt := range []struct{ service, forbidden, said string }{
		{service: "shop/web"}, {service: "shop/wed", said: missing}, {service: "shop/wed", forbidden: "services"},
	} {
		s.forbidden = tt.forbidden
		out, errs, code := s.run("monitor", "--count=1", "--service="+tt.service)
		if code != cli.ExitOK || errs != tt.said || !strings.HasPrefix(out, "node-a   ") {
			t.Errorf("%+v: exit code %d, output %q, said %q", tt, code, out, errs)
		}
	}
}

// TestPluginMonitorCount: after so many events of all nodes it ends, and what runs in the pods does.
// What was left out is no event.
func TestPluginMonitorCount(t *testing.T) {
	s := newAPIServer(t)
	var ends atomic.Int32
	s.agent("node-a", listens(&ends, manyEvents, connectionEvent, connectionEvent))
	s.agent("node-b", listens(&ends, manyEvents, connectionEvent))
	out, errs, code := s.run("monitor", "--count=3")
	if code != cli.ExitOK || errs != "" || strings.Count(out, "connection TCP") != 3 || strings.Count(out, "node-a ") != 3 || strings.Count(out, "node-b ") != 2 {
		t.Errorf("exit code %d, output %q, said %q", code, out, errs)
	}
	wait.Until(t, "the ends in both pods", func() bool { return ends.Load() == 2 })
}

// TestPluginMonitorTimeout: a node that does not begin is named, and one that has begun may be silent
// for longer than a node may take to begin.
func TestPluginMonitorTimeout(t *testing.T) {
	s := newAPIServer(t)
	late := false
	for timeout := 100 * time.Millisecond; !late && timeout < wait.Limit; timeout *= 2 {
		var errs said
		errs.named = make(chan struct{})
		s.agent("node-a", hangs)
		s.agent("node-b", func(_ *http.Request, _ []string, in io.Reader, out, _ io.Writer) int {
			_, _ = io.WriteString(out, "\n")
			<-errs.named
			time.Sleep(timeout) // the time to begin is over here, too
			_, _ = io.WriteString(out, connectionEvent)
			_, _ = io.Copy(io.Discard, in)
			return 0
		})
		var out bytes.Buffer
		code := cli.RunPlugin(t.Context(), fixtureEnv(&out, &errs), "--kubeconfig="+s.kubeconfig, "monitor", "--count=1", "--timeout="+timeout.String())
		if strings.Contains(errs.text.String(), "node-b: ") {
			continue // this machine takes longer to begin
		}
		late = true
		if want := fmt.Sprintf("node-a: exec in pod beeline-node-a: no answer within %s (--timeout)\n", timeout); code != cli.ExitOK || errs.text.String() != want || !strings.HasPrefix(out.String(), "node-b   ") {
			t.Errorf("exit code %d, output %q, said %q", code, &out, &errs.text)
		}
	}
	if !late {
		t.Errorf("node-b never begins")
	}
}

// TestPluginMonitorFollowsAgain: when an agent's pod restarts, or the connection to it is lost, the node
// is followed again, in the pod that it has then, once maps of its version are pinned there.
func TestPluginMonitorFollowsAgain(t *testing.T) {
	const killed = 128 + 9
	s := newAPIServer(t)
	s.nodes = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}}
	var ends atomic.Int32
	pod := func(name string, phase corev1.PodPhase, run program) {
		s.mu.Lock() // at once: nobody sees the node without a pod
		defer s.mu.Unlock()
		clear(s.pods)
		s.pods["kube-system/"+name] = corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: agentLabels},
			Spec:       corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "agent"}}},
			Status:     corev1.PodStatus{Phase: phase},
		}
		s.programs["kube-system/"+name] = run
	}
	var starts atomic.Int32
	third := func(_ *http.Request, _ []string, in io.Reader, out, errs io.Writer) int {
		switch starts.Add(1) {
		case 1:
			_, _ = io.WriteString(errs, "beeline: no datapath")
			return cli.ExitNoDatapath
		case 2:
			_, _ = io.WriteString(errs, "beeline: pinned by another version")
			return cli.ExitFailure
		}
		_, _ = io.WriteString(out, "\n"+connectionEvent)
		if ends.Add(1) == 1 {
			return connectionLost
		}
		_, _ = io.Copy(io.Discard, in)
		return 0
	}
	pod("first", corev1.PodRunning, func(_ *http.Request, _ []string, _ io.Reader, out, _ io.Writer) int {
		_, _ = io.WriteString(out, "\n"+connectionEvent)
		pod("second", corev1.PodPending, nil)
		return killed
	})
	var stdout, stderr bytes.Buffer
	code := cli.RunPlugin(t.Context(), fixtureEnv(&stdout, writer(func(p []byte) (int, error) {
		if bytes.Contains(p, []byte("Pending")) {
			pod("third", corev1.PodRunning, third)
		}
		return stderr.Write(p)
	})), "--kubeconfig="+s.kubeconfig, "monitor", "--count=3")
	out, errs := stdout.String(), stderr.String()
	if code != cli.ExitOK || strings.Count(out, "connection TCP") != 3 {
		t.Errorf("exit code %d, output %q, said %q", code, out, errs)
	}
	for _, want := range []string{"node-a: pod first: exit code 137; waiting for the agent\n", "node-a: pod second does not run: Pending; waiting for the agent\n", "node-a: pod third: beeline: no datapath; waiting for the agent\n",
		"node-a: pod third: beeline: pinned by another version; waiting for the agent\n", "node-a: pod third: followed again\n", "node-a: pod third: beeline monitor has ended; waiting for the agent\n"} {
		if !strings.Contains(errs, want) {
			t.Errorf("said %q, lacks %q", errs, want)
		}
	}
	// What ends by itself, or is not understood, is not followed again, nor where the flags are not known.
	pod("second", corev1.PodRunning, func(_ *http.Request, _ []string, _ io.Reader, out, _ io.Writer) int {
		_, _ = io.WriteString(out, "\n"+connectionEvent)
		pod("third", corev1.PodRunning, prints("\nnothing\n", cli.ExitOK))
		return killed
	})
	out, errs, code = s.run("monitor", "--count=3")
	if code != cli.ExitFailure || strings.Count(out, "connection TCP") != 1 || !strings.Contains(errs, "node-a: pod third: an event cannot be read") {
		t.Errorf("exit code %d, output %q, said %q", code, out, errs)
	}
	pod("second", corev1.PodRunning, func(_ *http.Request, _ []string, _ io.Reader, out, _ io.Writer) int {
		_, _ = io.WriteString(out, "\n"+connectionEvent)
		pod("third", corev1.PodRunning, prints("beeline: unknown flag: --until-eof", cli.ExitUsage))
		return killed
	})
	out, errs, code = s.run("monitor", "--count=3")
	if code != cli.ExitFailure || !strings.Contains(errs, "; waiting for the agent\nnode-a: pod third: beeline: unknown flag: --until-eof\n") {
		t.Errorf("exit code %d, output %q, said %q", code, out, errs)
	}
}

// writer is a function that is written to.
type writer func([]byte) (int, error)

// Write calls it.
func (w writer) Write(p []byte) (int, error) { return w(p) }

// TestPluginMonitorGivesUp: a node that was deleted, and one on which nothing may be run any more, are not
// waited for.
func TestPluginMonitorGivesUp(t *testing.T) {
	for want, happens := range map[string]func(*apiServer){
		"the cluster has no such node any more": func(s *apiServer) {
			s.mu.Lock()
			defer s.mu.Unlock()
			clear(s.pods)
			s.nodes = nil
		},
		"exec in pod beeline-node-a: unable to upgrade connection: pods/exec is forbidden": func(s *apiServer) { s.noExec.Store(true) },
	} {
		s := newAPIServer(t)
		s.nodes = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}}
		s.agent("node-a", func(_ *http.Request, _ []string, _ io.Reader, out, _ io.Writer) int {
			_, _ = io.WriteString(out, "\n"+connectionEvent)
			happens(s)
			return connectionLost
		})
		_, errs, code := s.run("monitor")
		if code != cli.ExitFailure || !strings.Contains(errs, "waiting for the agent\nnode-a: "+want+"\n") {
			t.Errorf("exit code %d, said %q, want %q", code, errs, want)
		}
	}
}

// TestPluginMonitorLosesAgain: a node whose monitor is killed each time soon after it has begun is given up, and
// looked for ever less often until then.
func TestPluginMonitorLosesAgain(t *testing.T) {
	s := newAPIServer(t)
	s.nodes = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}}
	s.agent("node-a", func(_ *http.Request, _ []string, _ io.Reader, out, _ io.Writer) int {
		_, _ = io.WriteString(out, "\n"+connectionEvent)
		return 128 + 9
	})
	var stdout, stderr bytes.Buffer
	env := fixtureEnv(&stdout, &stderr)
	var pauses []time.Duration
	env.Pause = func(_ context.Context, d time.Duration) bool {
		pauses = append(pauses, d)
		return true
	}
	code := cli.RunPlugin(t.Context(), env, "--kubeconfig="+s.kubeconfig, "monitor")
	if want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}; !slices.Equal(pauses, want) {
		t.Errorf("pauses of %v, want %v", pauses, want)
	}
	if code != cli.ExitFailure || strings.Count(stdout.String(), "connection TCP") != 5 || !strings.Contains(stderr.String(), "node-a: pod beeline-node-a: exit code 137; given up: lost 5 times, each within 2m0s\n") {
		t.Errorf("exit code %d, output %q, said %q", code, &stdout, &stderr)
	}
}

// said is a standard error that tells when something was written.
type said struct {
	text  bytes.Buffer
	named chan struct{}
}

// Write keeps p.
func (s *said) Write(p []byte) (int, error) {
	if s.text.Len() == 0 {
		close(s.named)
	}
	return s.text.Write(p)
}

// TestPluginMonitorEnds: however the plugin ends, the command in the pod ends, too. Both are real.
func TestPluginMonitorEnds(t *testing.T) {
	bpffs, maps := pinned(t, nil)
	s := newAPIServer(t)
	s.agent("node-a", beeline, "--bpffs="+bpffs)
	for _, end := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(end.String(), func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "--kubeconfig="+s.kubeconfig, "monitor")
			cmd.Env = append(os.Environ(), asCommandVariable+"="+cli.PluginName)
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.StdoutPipe()
			check(t, err)
			check(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill() }) // ended long ago, unless the test has failed
			wait.Until(t, "beeline monitor listens", func() bool { return listening(maps) })
			leaveOut(t, maps)
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "node-a   ") || !strings.HasSuffix(line, " 1 event more: see --rate\n") {
				t.Errorf("printed %q, %v; said %q", line, err, &errs)
			}
			check(t, cmd.Process.Signal(end))
			if err := cmd.Wait(); (err == nil) != (end != syscall.SIGKILL) || errs.Len() > 0 {
				t.Errorf("ended with %v, said %q", err, &errs)
			}
			wait.Until(t, "beeline monitor has ended", func() bool { return !listening(maps) })
		})
	}
}

// leaveOut counts an event that the listener did not get.
func leaveOut(t *testing.T, maps *bpfmap.Maps) {
	t.Helper()
	place := uint32(bits.TrailingZeros64(atomic.LoadUint64(&maps.Entries.Monitor.Listening))) // the last one's may be left only now
	var perCPU []bpf.SockBlMonitorCpuEntry
	check(t, maps.BlMonitorCpu.Lookup(place, &perCPU))
	perCPU[0].LeftOut++
	check(t, maps.BlMonitorCpu.Put(place, perCPU))
}
