package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// run runs beeline in process.
func run(args ...string) (out, errs string, code int) {
	var stdout, stderr bytes.Buffer
	code = cli.Run(context.Background(), fixtureEnv(&stdout, &stderr), args...)
	return stdout.String(), stderr.String(), code
}

// fixtureEnv returns the environment in which it is the time of the fixture, and pauses are short.
func fixtureEnv(out, errs io.Writer) cli.Env {
	return cli.Env{
		Out: out, Err: errs, Now: func() time.Time { return now },
		Pause: func(ctx context.Context, _ time.Duration) bool { return pause.For(ctx, time.Millisecond) },
	}
}

// drift are the seconds that pass between the fixture and the output.
var drift = []struct {
	pattern *regexp.Regexp
	to      string
}{
	{regexp.MustCompile(`\b2\ds\b`), "20s"},
	{regexp.MustCompile(`(idleSeconds"?: )2\d\b`), "${1}20"},
	{regexp.MustCompile(`(remainingSeconds"?: )107[78]\d\b`), "${1}10780"},
}

// TestGolden compares what each command prints for the fixture.
func TestGolden(t *testing.T) {
	bpffs := newDatapath(t)
	for _, args := range []string{
		"service list", "service list -o wide", "service list -n shop", "service list -n nowhere",
		"service list -n kube-system -o json", "service list -n kube-system -o yaml", "service list -n nowhere -o json", "service list -o ipvsadm", "service show shop/web -o ipvsadm",
		"service show shop/web", "service show shop/web -o wide", "service show shop/web -o json", "service show shop/web -o yaml",
		"service show shop/empty", "service show shop/agent", "service show shop/late", "service show shop/late -o json", "service show dns -n kube-system",
		"service show kube-system/busy", "service show kube-system/busy -o wide", "service show kube-system/busy -o json",
		"service show shop/wed", "service show other/thing", "service show web", "service show a/b/c",
		"backend list", "backend list -o wide", "backend list -n shop -o json", "backend list -n shop -o yaml",
		"frontend list", "frontend list -o wide", "frontend list -n shop -o json", "frontend list -n shop -o yaml",
		"affinity list", "affinity list --all", "affinity list --all -o wide", "affinity list --all -o json", "affinity list -o yaml",
		"flow list", "flow list -o wide", "flow list --limit 3", "flow list --service shop/web -o json", "flow list --state new -o yaml",
		"flow show 198.51.100.9:51000", "flow show 198.51.100.9:5353 -o json", "flow show 203.0.113.7:40000",
		"flow show 198.18.0.1:40000", "flow show 198.18.0.2:40000",
		"flow show 203.0.113.7:1", "flow show 203.0.113.7", "flow show", "flow delete", "flow delete --all --protocol TCP",
		"flow list --client there", "flow list --state open", "flow list --protocol ICMP", "flow list --service web",
		"explain --help", "explain shop/late", "explain --from 2001:db8::7 kube-system/dns", "explain --from 2001:db8::7 -o json kube-system/dns", "explain shop/wed",
		"top --help", "top shop/wed --interval 100ms", "top web", "top shop/web shop/dns", "top --interval 1ms", "top --sort size", "top --count -1",
		"node list", "node list -o wide", "node list -o json", "node show",
		"svc ls", "no ls", "fe list -n default", "be list -n default", "aff list -n default",
		"service", "service remove", "service list extra", "service list --colour", "status -o xml", "nothing",
		"completion", "completion tcsh",
		"__complete service show sh", "__complete service show -n shop w", "__complete service list -n k",
		"__complete service list -o ", "__complete completion ",
	} {
		t.Run(args, func(t *testing.T) {
			words := strings.Split(args, " ")
			out, errs, code := run(append([]string{"--bpffs", bpffs}, words...)...)
			got := fmt.Sprintf("$ beeline %s\n%s%sexit code %d\n", strings.TrimSpace(args), out, errs, code)
			for _, d := range drift {
				got = d.pattern.ReplaceAllString(got, d.to)
			}
			compareGolden(t, strings.Join(strings.Fields(args), "_"), got)
		})
	}
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", strings.NewReplacer("/", "+", ":", "=").Replace(name)+".golden")
	if *update {
		check(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	check(t, err)
	if got != string(want) {
		t.Errorf("differs from %s; got:\n%s", path, got)
	}
	for _, line := range strings.Split(got, "\n") {
		if strings.HasSuffix(line, " ") {
			t.Errorf("line ends in blanks: %q", line)
		}
	}
}

// TestAliases finds no difference between a command and its short form.
func TestAliases(t *testing.T) {
	bpffs := newDatapath(t)
	for long, short := range map[string]string{
		"service": "svc", "backend": "be", "frontend": "fe", "affinity": "aff", "flow": "fl", "node": "no",
	} {
		before, _, _ := run(long, "list", "--bpffs", bpffs)
		got, _, code := run(short, "list", "--bpffs", bpffs)
		after, _, _ := run(long, "list", "--bpffs", bpffs)
		// A second may pass between two of them.
		if code != cli.ExitOK || (got != before && got != after) {
			t.Errorf("%s list: exit code %d, output:\n%s", short, code, got)
		}
	}
}

// TestAffinityUnread: where the table of clients with established flows cannot be read, it is not known
// which entries of new ones decide, and none is listed.
func TestAffinityUnread(t *testing.T) {
	bpffs := newDatapath(t)
	for _, c := range []struct {
		unread string
		listed []string // clients of packets
	}{
		{"bl_new_client", []string{"203.0.113.10", "2001:db8::9"}},
		{"bl_client", nil},
	} {
		pin := filepath.Join(datapath.Dir(bpffs), c.unread)
		check(t, os.Rename(pin, pin+"-9"))
		out, errs, code := run("affinity", "list", "--bpffs", bpffs)
		check(t, os.Rename(pin+"-9", pin))
		if code != cli.ExitOK || !strings.Contains(errs, "beeline: left out: "+c.unread+" (") {
			t.Errorf("without %s: exit code %d, said %q", c.unread, code, errs)
		}
		var got []string
		for line := range strings.Lines(out) {
			if client := strings.Fields(line)[0]; client != "CLIENT" && !strings.HasPrefix(client, "netns:") {
				got = append(got, client)
			}
		}
		if !slices.Equal(got, c.listed) {
			t.Errorf("without %s, of packets %q are listed, want %q", c.unread, got, c.listed)
		}
	}
}

// TestExitCodes gives scripts the code that the help promises.
func TestExitCodes(t *testing.T) {
	bpffs := newDatapath(t)
	for _, c := range []struct {
		args string
		want int
		says string // on standard error
	}{
		{"service list", cli.ExitOK, ""},
		{"service show shop/web", cli.ExitOK, ""},
		{"service show shop/we", cli.ExitNotFound, "did you mean shop/web?"},
		{"service show other/web", cli.ExitNotFound, "did you mean shop/web?"},
		{"service show other/thing", cli.ExitNotFound, "beeline service list"},
		{"service show", cli.ExitUsage, "NAMESPACE/NAME"},
		{"service show a/b c/d", cli.ExitUsage, "NAMESPACE/NAME"},
		{"service show shop/web -n default", cli.ExitUsage, "--namespace"},
		{"bpffs", cli.ExitUsage, "no command"},
		{"status --nosuch", cli.ExitUsage, "beeline status --help"},
		{"status -o", cli.ExitUsage, "flag needs an argument"},
		{"status more", cli.ExitUsage, "unexpected argument"},
	} {
		_, errs, code := run(append(strings.Fields(c.args), "--bpffs="+bpffs)...)
		if c.args == "status -o" {
			_, errs, code = run("status", "-o")
		}
		if code != c.want || !strings.Contains(errs, c.says) || (c.want == cli.ExitOK) != (errs == "") {
			t.Errorf("beeline %s: exit code %d, want %d with %q; said %q", c.args, code, c.want, c.says, errs)
		}
	}
}

// TestNoDatapath says where nothing was found.
func TestNoDatapath(t *testing.T) {
	bpffs := newBPFFS(t)
	for _, args := range []string{"service list", "service show a/b", "backend list", "frontend list", "affinity list", "flow list", "node list", "flow show 192.0.2.7:1", "flow delete --all", "status"} {
		out, errs, code := run(append(strings.Fields(args), "--bpffs", bpffs)...)
		if code != cli.ExitNoDatapath || out != "" || !strings.Contains(errs, datapath.Dir(bpffs)) || !strings.Contains(errs, "--bpffs") {
			t.Errorf("%s: exit code %d, output %q, said %q", args, code, out, errs)
		}
	}
	other := filepath.Join(filepath.Dir(datapath.Dir(bpffs)), "v999")
	check(t, os.MkdirAll(other, 0o700))
	maps, err := bpfmap.Load(datapath.Dir(bpffs), bpfmap.DefaultSizes)
	check(t, err)
	defer maps.Close()
	check(t, maps.Pin(other))
	_, errs, code := run("status", "--bpffs", bpffs)
	if code != cli.ExitNoDatapath || !strings.Contains(errs, other) {
		t.Errorf("another schema: exit code %d, said %q", code, errs)
	}
}

// TestPermissionDenied asks for root when the maps may not be read.
func TestPermissionDenied(t *testing.T) {
	bpffs := newDatapath(t)
	errs, code := runAsNobody(t, "--bpffs", bpffs, "service", "list")
	if code != cli.ExitFailure || !strings.Contains(errs, "sudo") {
		t.Errorf("exit code %d, said %q", code, errs)
	}
}

// TestBrokenOutput: a command whose output cannot be written fails.
func TestBrokenOutput(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	check(t, err)
	defer full.Close()
	var errs bytes.Buffer
	code := cli.Run(t.Context(), cli.Env{Out: full, Err: &errs, Now: time.Now}, "version")
	if code != cli.ExitFailure || !strings.Contains(errs.String(), "no space") {
		t.Errorf("exit code %d, said %q", code, errs.String())
	}
}

// TestVersion needs no datapath.
func TestVersion(t *testing.T) {
	out, _, code := run("version")
	if want := fmt.Sprintf("(schema %d)\n", bpfmap.Schema); code != cli.ExitOK || !strings.HasSuffix(out, want) {
		t.Errorf("exit code %d, output %q", code, out)
	}
	out, _, _ = run("version", "-o", "json")
	var v struct {
		Version string
		Schema  int
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || v.Version == "" || v.Schema != bpfmap.Schema {
		t.Errorf("JSON %q: %v", out, err)
	}
}

// TestCompletionScripts are those of the shell asked for.
func TestCompletionScripts(t *testing.T) {
	for shell, sign := range map[string]string{
		"bash": "complete -o default -F __start_beeline beeline",
		"zsh":  "#compdef beeline",
		"fish": "complete -c beeline",
	} {
		out, errs, code := run("completion", shell)
		if code != cli.ExitOK || !strings.Contains(out, sign) {
			t.Errorf("%s: exit code %d, said %q, no %q in the output", shell, code, errs, sign)
		}
	}
}

// TestStatus reads the state of real maps, with the agent down and up.
func TestStatus(t *testing.T) {
	bpffs := newDatapath(t)
	down := status(t, bpffs)
	want := inspect.Agent{
		PID: 4242, Version: "v0.1.0", Node: "node-a", Source: "https://192.0.2.1:6443", Cgroup: "/sys/fs/cgroup",
		Started: down.Agent.Started, LastSync: down.Agent.LastSync, Syncs: 1, Pending: 2,
	}
	if down.Agent != want || !down.Agent.Started.Equal(now.Add(-3*time.Hour)) || !down.Agent.LastSync.Equal(now.Add(-5*time.Second)) {
		t.Errorf("agent is %+v", down.Agent)
	}
	if want := (inspect.Served{Services: 7, Ports: 14, Frontends: 28, Backends: 12}); down.Served != want {
		t.Errorf("served is %+v, want %+v", down.Served, want)
	}
	if want := (inspect.Tunnel{Port: 6091, Nodes: 5, Asked: 4, Used: 1}); down.Tunnel != want {
		t.Errorf("tunnel is %+v, want %+v", down.Tunnel, want)
	}
	if len(down.Programs) != 0 {
		t.Errorf("programs are %+v, want none", down.Programs)
	}
	if c := down.Counters[0]; c.Reason != "no_endpoint" || c.Count != 17 || c.Effect != "refused" {
		t.Errorf("first counter is %+v", c)
	}
	checkMaps(t, down.Maps)

	lockAsAgent(t, bpffs)
	if up := status(t, bpffs); !up.Agent.Running || up.Agent.PID != os.Getpid() {
		t.Errorf("agent is %+v, want it to run as %d", up.Agent, os.Getpid())
	}
}

func checkMaps(t *testing.T, maps []inspect.Map) {
	t.Helper()
	least := max(1024, 256*uint32(runtime.NumCPU()))
	byName := make(map[string]inspect.Map)
	for _, m := range maps {
		if m.MemoryBytes == 0 && m.Name != "bl_local_cidr" {
			t.Errorf("map %s takes no memory", m.Name)
		}
		m.MemoryBytes = 0
		byName[m.Name] = m
	}
	for _, want := range []inspect.Map{
		{Name: "bl_frontend", Used: 28, Size: 1 << 18, Setting: "--max-frontends"},
		{Name: "bl_service", Used: 14, Size: 1 << 18, Setting: "--max-services"},
		{Name: "bl_backend", Used: 12, Size: 1 << 21, Setting: "--max-backends"},
		{Name: "bl_slot", Used: 16, Size: 1 << 24, Setting: "--max-slots"},
		{Name: "bl_affinity", Used: 4, Size: 1024, Setting: "--max-affinity-entries"},
		{Name: "bl_udp_peer", Used: 0, Size: 1024, Setting: "--max-udp-peers"},
		{Name: "bl_flow", Used: 15, Size: 1024, Setting: "--max-flows"},
		{Name: "bl_overflow", Used: 0, Size: least, Setting: "--max-flows"},
		{Name: "bl_client", Used: 5, Size: 1024, Setting: "--max-clients"},
		{Name: "bl_new_client", Used: 6, Size: least, Setting: "--max-clients"},
		{Name: "bl_srcrange", Used: 2, Size: 1 << 16, Setting: "--max-source-ranges"},
		{Name: "bl_node_addr", Used: 2, Size: 4096},
		{Name: "bl_node", Used: 6, Size: 8192},
		{Name: "bl_sock"},
		{Name: "bl_udp_sock"},
	} {
		if got := byName[want.Name]; got != want {
			t.Errorf("map is %+v, want %+v", got, want)
		}
	}
}

func status(t *testing.T, bpffs string) inspect.Status {
	t.Helper()
	out, errs, code := run("status", "--bpffs", bpffs, "-o", "json")
	if code != cli.ExitOK {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	var s inspect.Status
	check(t, json.Unmarshal([]byte(out), &s))
	return s
}

// lockAsAgent holds what a running agent holds.
func lockAsAgent(t *testing.T, bpffs string) {
	t.Helper()
	dir, err := os.Open(filepath.Dir(datapath.Dir(bpffs)))
	check(t, err)
	t.Cleanup(func() { check(t, dir.Close()) })
	check(t, unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB))
}

// TestInvisibleBytes: bytes that are no UTF-8, as names of processes may have, are escaped: a
// terminal may take them for control characters.
func TestInvisibleBytes(t *testing.T) {
	bpffs, maps := pinned(t, nil)
	statusmap.New(maps).SetAgent(statusmap.Agent{PID: 4242, Node: "a\x9b31m\u202e", Version: "v1"})
	for format, want := range map[string]string{"table": `a\x9b31m\u202e`, "json": `a\ufffd31m\u202e`, "yaml": `a\ufffd31m\u202e`} {
		out, errs, code := run("--bpffs", bpffs, "status", "-o", format)
		if code != cli.ExitOK || !strings.Contains(out, want) {
			t.Errorf("-o %s: exit code %d, said %q, lacks %s:\n%q", format, code, errs, want, out)
		}
	}
}
