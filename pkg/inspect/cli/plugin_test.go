package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
)

// comparePlugin compares what the plugin prints with a golden file.
func comparePlugin(t *testing.T, s *apiServer, args string) {
	t.Helper()
	comparePluginAs(t, "plugin", s, args)
}

// comparePluginAs is comparePlugin with another prefix of the file's name, for another cluster.
func comparePluginAs(t *testing.T, prefix string, s *apiServer, args string) {
	t.Helper()
	out, errs, code := s.run(strings.Fields(args)...)
	compareGolden(t, prefix+"_"+strings.Join(strings.Fields(args), "_"), fmt.Sprintf("$ kubectl beeline %s\n%s%sexit code %d\n", args, out, errs, code))
}

// TestPluginStatus: a row for each node that answers, and the others are named with the reason.
func TestPluginStatus(t *testing.T) {
	s := newAPIServer(t)
	bpffs, empty := newDatapath(t), newBPFFS(t)
	lockAsAgent(t, bpffs)
	s.agent("node-a", beeline, "--config=/etc/beeline/config.yaml", "--bpffs="+bpffs)
	s.agent("node-b", beeline, "--bpffs="+bpffs)
	s.agent("node-c", prints("beeline: unknown flag: --output\x1b[31m", cli.ExitUsage))
	s.agent("node-d", prints("Agent   running\n", cli.ExitOK))
	s.agent("node-e", beeline, "--bpffs="+bpffs)
	s.agent("node-f", prints("beeline: no datapath", cli.ExitNoDatapath))
	pending := s.pods["kube-system/beeline-node-e"]
	pending.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImageNeverPull", Message: "the image is not there"}},
	}}}
	s.pods["kube-system/beeline-node-e"] = pending
	for _, args := range []string{
		"status", "status -o wide --node node-b", "status --node node-f", "status --node node-a --node node-x",
		"status -n nowhere", "status -l app=other", "status extra", "nothing",
	} {
		t.Run(args, func(t *testing.T) { comparePlugin(t, s, args) })
	}
	s.agent("node-f", beeline, "--bpffs="+empty)
	if _, errs, code := s.run("status", "--node=node-f"); code != cli.ExitNoDatapath || !strings.Contains(errs, empty) {
		t.Errorf("without a datapath: exit code %d, said %q", code, errs)
	}
	out, errs, code := s.run("status", "-o", "json")
	var byNode map[string]inspect.Status
	check(t, json.Unmarshal([]byte(out), &byNode))
	if code != cli.ExitFailure || len(byNode) != 2 || byNode["node-b"].Agent.Version != "v0.1.0" || !strings.Contains(errs, "node-e") {
		t.Errorf("exit code %d, answers %v, said %q", code, byNode, errs)
	}
}

// TestPluginPods: of a node's pods the one that stays and runs is asked.
func TestPluginPods(t *testing.T) {
	s := newAPIServer(t)
	s.agent("node-a", prints("{}", cli.ExitOK))
	for name, status := range map[string]corev1.PodStatus{"a-leaves": {Phase: corev1.PodRunning}, "failed": {Phase: corev1.PodFailed}} {
		pod := s.pods["kube-system/beeline-node-a"]
		pod.Name, pod.Status = name, status
		if name == "a-leaves" {
			pod.DeletionTimestamp = &metav1.Time{Time: now}
		}
		s.add(pod, nil)
	}
	if out, errs, code := s.run("status"); code != cli.ExitOK || strings.Count(out, "node-a") != 1 {
		t.Errorf("exit code %d, output %q, said %q", code, out, errs)
	}
	s.add(corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "homeless", Labels: agentLabels},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no node has room",
		}}},
	}, nil)
	if _, errs, code := s.run("status"); code != cli.ExitFailure || !strings.Contains(errs, "pod homeless does not run: Pending: Unschedulable: no node has room") {
		t.Errorf("exit code %d, said %q", code, errs)
	}
}

// TestPluginCrash: a pod whose agent crashes again and again is said to run.
func TestPluginCrash(t *testing.T) {
	s := newAPIServer(t)
	s.agent("node-a", nil)
	pod := s.pods["kube-system/beeline-node-a"]
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"},
	}}}
	s.add(pod, nil)
	if _, errs, code := s.run("status"); code != cli.ExitFailure || !strings.Contains(errs, "does not run: Running: CrashLoopBackOff: back-off 10s") {
		t.Errorf("exit code %d, said %q", code, errs)
	}
}

// TestPluginTimeout: a node that hangs holds nobody up.
func TestPluginTimeout(t *testing.T) {
	s := newAPIServer(t)
	s.agent("node-a", hangs)
	comparePlugin(t, s, "status --timeout 100ms")
	s.noSocket = true
	comparePlugin(t, s, "status --timeout 100ms")
}

// TestPluginEndless: a node cannot fill the caller's memory.
func TestPluginEndless(t *testing.T) {
	s := newAPIServer(t)
	s.agent("node-a", func(_ *http.Request, _ []string, _ io.Reader, out, _ io.Writer) int {
		_, _ = out.Write(make([]byte, 65<<20)) // the client may have left
		return 0
	})
	if _, errs, code := s.run("status", "--timeout=10m"); code != cli.ExitFailure || !strings.Contains(errs, "more than 64 MiB") {
		t.Errorf("exit code %d, said %q", code, errs)
	}
}

// top returns what beeline top prints on a node.
func top(connections float64, flows int, used uint32) string {
	traffic := &inspect.TrafficRates{
		ToBackend: inspect.VolumeRates{PacketsPerSecond: 100 * connections, BytesPerSecond: 64_000 * connections},
		ToClient:  inspect.VolumeRates{PacketsPerSecond: 90 * connections, BytesPerSecond: 1_000_000 * connections},
	}
	rates := inspect.Rates{ConnectionsPerSecond: connections, Flows: flows, Traffic: traffic}
	port := inspect.TopPort{PortName: inspect.PortName{Namespace: "shop", Service: "web", Port: 80, Protocol: "TCP", Family: "IPv4", ID: used}, Algorithm: "wlc", Rates: rates}
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	for _, address := range []string{"10.244.1.7:8080", "10.244.2.9:8080"} {
		seen := 2 * flows
		b := inspect.TopBackend{Connections: flows, New: &seen, Traffic: traffic}
		check(b.Address.UnmarshalText([]byte(address)))
		port.Backends = append(port.Backends, b)
		flows /= 3
	}
	text, err := json.Marshal(inspect.Top{
		Time: now, Seconds: 2, EvictedPerSecond: 0.5, New: &inspect.TopNew{Since: now, LeftOut: uint64(used)},
		Services: []inspect.TopService{{Namespace: "shop", Name: "web", Rates: rates, Ports: []inspect.TopPort{port}}},
		Maps:     []inspect.Map{{Name: "bl_flow", Used: used, Size: 100}, {Name: "bl_slot", Used: 1, Size: 100}},
	})
	check(err)
	return string(text)
}

// TestPluginTop: figures are summed by Service, or by node.
func TestPluginTop(t *testing.T) {
	s := newAPIServer(t)
	s.agent("node-a", prints(top(10, 30, 7), cli.ExitOK))
	s.agent("node-b", prints(top(2.5, 90, 50), cli.ExitOK))
	for _, args := range []string{"top", "top shop/web", "top --by node", "top --by zone", "top a/b c/d", "top web"} {
		t.Run(args, func(t *testing.T) { comparePlugin(t, s, args) })
	}
	s.run("top", "shop/web", "--interval=3s", "--node=node-a")
	if got, want := s.command(), "beeline --output=json top --count=1 --interval=3s -- shop/web"; got != want {
		t.Errorf("ran %q, want %q", got, want)
	}
}

// TestPluginTopAsks: a node is asked for what is shown, without blanks: of a large cluster all else is
// gigabytes through the API server.
func TestPluginTopAsks(t *testing.T) {
	s := newAPIServer(t)
	bpffs := newDatapath(t)
	var printed bytes.Buffer // by the node
	s.agent("node-a", func(r *http.Request, args []string, in io.Reader, out, errs io.Writer) int {
		printed.Reset()
		return beeline(r, args, in, io.MultiWriter(out, &printed), errs)
	}, "--bpffs="+bpffs)
	for _, c := range []struct {
		args, shows       string
		services, backend bool // that the node tells
	}{
		{"top", "8 services", true, false},
		{"top", "kube-system   busy         0.0             0.0         0       2\n", true, false},
		{"top -o json", `"backends": 2`, true, false},
		{"top --by node", "node-a   0.0             0.0         6       8 ", false, false},
		{"top --by node -o json", `"services": 8`, false, false},
		{"top kube-system/busy", "77.8 %", true, true},
		{"top kube-system/busy -o json", `"10.0.1.7:8080"`, true, true},
	} {
		out, errs, code := s.run(append(strings.Fields(c.args), "--interval=100ms")...)
		if code != cli.ExitOK || errs != "" || !strings.Contains(out, c.shows) {
			t.Errorf("%s: exit code %d, said %q, lacks %q:\n%s", c.args, code, errs, c.shows, out)
		}
		text := printed.String()
		services, backend := strings.Contains(text, `"name":"busy"`), strings.Contains(text, "10.0.1.7:8080")
		if services != c.services || backend != c.backend || strings.Count(text, "\n") != 1 {
			t.Errorf("%s: the node has told Services: %t, backends: %t, in %d lines", c.args, services, backend, strings.Count(text, "\n"))
		}
	}
}

// TestPluginTopOlder: a node that does not know --detail, as before an upgrade, is summed with the others.
func TestPluginTopOlder(t *testing.T) {
	s := newAPIServer(t)
	bpffs := newDatapath(t)
	s.agent("node-a", beeline, "--bpffs="+bpffs)
	s.agent("node-b", func(r *http.Request, args []string, in io.Reader, out, errs io.Writer) int {
		if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--detail") }) {
			return prints("beeline: unknown flag: --detail (see beeline top --help)", cli.ExitUsage)(r, args, in, out, errs)
		}
		return beeline(r, args, in, out, errs)
	}, "--bpffs="+bpffs)
	for args, shows := range map[string]string{
		"top": "kube-system   busy         0.0             0.0         0       2\n", "top --by node": "node-b   0.0             0.0         6       8 ",
	} {
		out, errs, code := s.run(append(strings.Fields(args), "--interval=100ms")...)
		if code != cli.ExitOK || errs != "" || !strings.Contains(out, shows) {
			t.Errorf("%s: exit code %d, said %q, lacks %q:\n%s", args, code, errs, shows, out)
		}
	}
	var byNode map[string]inspect.Top
	out, errs, code := s.run("top", "-o", "json", "--interval=100ms")
	check(t, json.Unmarshal([]byte(out), &byNode))
	if code != cli.ExitOK || errs != "" || len(byNode) != 2 || len(byNode["node-b"].Services) != 8 || byNode["node-b"].Services[0].Ports != nil {
		t.Errorf("top -o json: exit code %d, said %q:\n%s", code, errs, out)
	}
}

// TestPluginVerify: what is found on several nodes is said once, with their names.
func TestPluginVerify(t *testing.T) {
	s := newAPIServer(t)
	const detached = `{"part": "programs", "kind": "link-detached", "what": "the link of bl_connect4 has been detached", "why": "nothing is served", "fix": "start the agent"}`
	s.agent("node-a", prints(`{"findings": [`+detached+`], "unchecked": [], "unsettled": ["shop/web"]}`, cli.ExitNotFound))
	s.agent("node-b", prints(`{"findings": [`+detached+`, {"part": "machine", "kind": "sysctl", "what": "forwarding is off", "why": "no packet is sent on", "fix": "set it"}]}`, cli.ExitNotFound))
	s.agent("node-c", prints(`{"findings": [], "unchecked": [{"part": "tables", "reason": "no source"}]}`, cli.ExitFailure))
	s.agent("node-d", prints(`{"findings": []}`, cli.ExitOK))
	for _, args := range []string{"verify", "verify --node node-a", "verify --node node-a --node node-d -o json", "verify --node node-d"} {
		t.Run(args, func(t *testing.T) { comparePlugin(t, s, args) })
	}
}

// TestPluginControlCharacters: no form of output has a control character, which a terminal would obey, or
// one that shows what follows in another order, and JSON and YAML have what the node has said.
func TestPluginControlCharacters(t *testing.T) {
	const (
		name    = "a\x1b[2J\x7f\u0080\u0085\u009b2J\u009f\ufeff\ufffe\uffff\u202etxt\u2066\u2028\u2029\u00ad\U000e0001"
		escaped = `a\u001b[2J\u007f\u0080\u0085\u009b2J\u009f\ufeff\ufffe\uffff\u202etxt\u2066\u2028\u2029\u00ad\udb40\udc01`
	)
	s := newAPIServer(t)
	s.agent("node-a", func(_ *http.Request, args []string, _ io.Reader, out, _ io.Writer) int {
		answer := `{"findings": [], "unchecked": [], "unsettled": ["` + escaped + `"]}`
		if slices.Contains(args, "monitor") {
			answer = "\n" + `{"time":"2026-03-01T12:00:00Z","kind":"refused","hook":"connect","protocol":"TCP","pid":8,"command":"` + escaped + `"}` + "\n"
		}
		_, _ = io.WriteString(out, answer) // the client may have left
		return cli.ExitOK
	})
	for _, words := range []string{"verify", "monitor --count 1"} {
		for _, format := range []string{"table", "wide", "json", "yaml"} {
			out, errs, code := s.run(append(strings.Fields(words), "-o", format)...)
			if code != cli.ExitOK || strings.ContainsFunc(out, func(r rune) bool { return unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) && r != '\n' }) {
				t.Errorf("%s -o %s: exit code %d, output %q, said %q", words, format, code, out, errs)
			}
			var v any
			switch format {
			case "json":
				check(t, json.Unmarshal([]byte(out), &v))
			case "yaml":
				check(t, yaml.Unmarshal([]byte(out), &v))
			default:
				continue
			}
			if !strings.Contains(fmt.Sprint(v), name) {
				t.Errorf("%s -o %s lacks %q:\n%s", words, format, name, out)
			}
		}
	}
}

// client adds a pod that connects to Services.
func (s *apiServer) client(name string, host bool, addresses ...string) {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       corev1.PodSpec{NodeName: "node-a", HostNetwork: host},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, address := range addresses {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: address})
	}
	s.add(pod, nil)
}

// TestPluginExplain: the pod's node is asked about the pod's addresses.
func TestPluginExplain(t *testing.T) {
	s := newAPIServer(t)
	bpffs := newDatapath(t)
	s.agent("node-a", beeline, "--bpffs="+bpffs)
	s.client("on-host", true, "192.0.2.1")
	for _, args := range []string{"explain on-host 10.96.0.10:53/UDP", "explain shop/on-host other/thing", "explain shop/on-host shop/late", "explain nobody web", "explain on-host", "explain --help"} {
		t.Run(args, func(t *testing.T) { comparePlugin(t, s, args) })
	}
	const refused = `[{"address": "10.96.0.10", "port": 80, "protocol": "TCP", "verdict": "refused", "reason": "no_endpoint", "steps": [], "backends": [], "counters": []}]`
	s.agent("node-a", prints(refused, cli.ExitRefused))
	s.agent("node-b", prints("", cli.ExitOK))
	s.client("cart-0", false, "10.244.1.7", "fd00::7")
	s.client("new", false)
	for _, c := range []struct {
		args, ran string
		code      int
	}{
		{"explain cart-0 web", "explain --from=fd00::7 -- shop/web", cli.ExitRefused},
		{"explain shop/cart-0 kube-system/dns", "explain --from=fd00::7 -- kube-system/dns", cli.ExitRefused},
		{"explain cart-0 10.96.0.10:80", "explain --from=10.244.1.7 -- 10.96.0.10:80", cli.ExitRefused},
		{"explain cart-0 [fd97::1]:80/udp", "explain --from=fd00::7 -- [fd97::1]:80/udp", cli.ExitRefused},
		{"explain cart-0 -- --help", "explain --from=fd00::7 -- shop/--help", cli.ExitRefused},
		{"explain new web", "", cli.ExitFailure},
	} {
		out, errs, code := s.run(strings.Fields(c.args)...)
		if code != c.code || (c.ran != "") != strings.Contains(out, "refused (no_endpoint)") {
			t.Errorf("%s: exit code %d, output %q, said %q", c.args, code, out, errs)
		}
		if want := "beeline --output=json " + c.ran; c.ran != "" && s.command() != want {
			t.Errorf("%s: ran %q, want %q", c.args, s.command(), want)
		}
	}
}

// TestPluginExplainWide: of endpoints that get no connections some are shown, with -o wide all.
func TestPluginExplainWide(t *testing.T) {
	s := newAPIServer(t)
	s.client("cart-0", false, "10.244.1.7")
	var backends []string
	for i := range 22 {
		backends = append(backends, fmt.Sprintf(`{"address": "10.244.2.%d", "targetPort": 80, "sets": [], "share": 0, "why": "not ready"}`, i+1))
	}
	s.agent("node-a", prints(fmt.Sprintf(`[{"address": "10.96.0.10", "port": 80, "protocol": "TCP", "verdict": "refused", "reason": "no_endpoint", "steps": [], "backends": [%s], "counters": []}]`,
		strings.Join(backends, ",")), cli.ExitRefused))
	for args, want := range map[string]struct {
		endpoints int
		more      string
	}{
		"explain cart-0 web":         {20, "  and 2 more endpoints get no connections: see -o wide\n"},
		"explain -o wide cart-0 web": {22, ""},
	} {
		out, _, _ := s.run(strings.Fields(args)...)
		if n := strings.Count(out, "not ready"); n != want.endpoints || strings.Contains(out, "see -o wide") != (want.more != "") || !strings.Contains(out, want.more) {
			t.Errorf("%s: %d endpoints\n%s", args, n, out)
		}
	}
}

// TestPluginExplainFamilies: a pod with addresses of both families is asked about by the one that the
// Service has; a Service that no address of the pod has a frontend of is an error.
func TestPluginExplainFamilies(t *testing.T) {
	s := newAPIServer(t)
	s.client("cart-0", false, "10.244.1.7", "fd00::7")
	s.client("cart-6", false, "fd00::8")
	s.client("cart-4", false, "10.244.1.8")
	s.agent("node-a", func(_ *http.Request, args []string, _ io.Reader, out, errs io.Writer) int {
		text, to, code := `[{"address": "10.96.0.10", "port": 53, "protocol": "UDP", "verdict": "served", "steps": [], "backends": [], "counters": []}]`, out, cli.ExitOK
		switch {
		case slices.Contains(args, "shop/old"): // as versions that did not know better
			text = "[]"
		case slices.Contains(args, "shop/web") && strings.Contains(strings.Join(args, " "), "--from=fd00"):
			text, to, code = "beeline: service shop/web has no IPv6 frontend", errs, cli.ExitNotFound
		case slices.Contains(args, "shop/late"):
			text, to, code = "beeline: service shop/late has no frontend on this node: bl_service is full", errs, cli.ExitNotFound
		}
		_, _ = io.WriteString(to, text) // the client may have left
		return code
	})
	for _, tt := range []struct {
		args, says string
		code       int
	}{
		{"explain cart-0 web", "10.96.0.10:53/UDP: served", cli.ExitOK},
		{"explain cart-6 web", "node-a: pod beeline-node-a: beeline: service shop/web has no IPv6 frontend", cli.ExitNotFound},
		{"explain cart-0 late", "node-a: pod beeline-node-a: beeline: service shop/late has no frontend on this node: bl_service is full", cli.ExitNotFound},
		{"explain cart-0 old", "no frontend of old for pod shop/cart-0 on node node-a: not found", cli.ExitNotFound},
		{"explain cart-4 [fd97::1]:80", "pod shop/cart-4: no IPv6 address, only 10.244.1.8", cli.ExitFailure},
	} {
		out, errs, code := s.run(strings.Fields(tt.args)...)
		if code != tt.code || strings.Count(out+errs, tt.says) != 1 || (code == cli.ExitOK) != (errs == "") || (code == cli.ExitOK) != (out != "") {
			t.Errorf("%s: exit code %d, output %q, said %q", tt.args, code, out, errs)
		}
	}
}
