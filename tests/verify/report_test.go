package verify_test

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tunnel"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/targz"
)

// archive is what a report has, by file.
type archive map[string]string

// report makes a report of the node.
func (n *node) report(t *testing.T, flags ...string) archive {
	t.Helper()
	code, out, errs := n.beeline(t, append([]string{"report", "-o", "-"}, flags...)...)
	if code != cli.ExitOK {
		t.Fatalf("exit code %d, %q", code, errs)
	}
	files := make(archive)
	for name, content := range targz.Files(t, strings.NewReader(out)) {
		if !strings.HasPrefix(name, "beeline-report-"+lab.NodeName+"-") {
			t.Errorf("a file is named %s", name)
		}
		files[filepath.Base(name)] = content
	}
	return files
}

// want fails unless a file has all the words.
func (a archive) want(t *testing.T, file string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(a[file], w) {
			t.Errorf("%s lacks %q:\n%s", file, w, a[file])
		}
	}
}

// wantMissing fails unless the index gives the reason why a file is missing.
func (a archive) wantMissing(t *testing.T, file, reason string) {
	t.Helper()
	for line := range strings.Lines(a["index.txt"]) {
		if strings.HasPrefix(line, file+" ") && strings.Contains(line, "FAILED: ") && strings.Contains(line, reason) {
			return
		}
	}
	t.Errorf("the index does not say %q of %s:\n%s", reason, file, a["index.txt"])
}

// wantNone fails where a secret is anywhere in the archive, as it is or as base64.
func (a archive) wantNone(t *testing.T, secrets ...string) {
	t.Helper()
	for name, content := range a {
		for _, s := range secrets {
			if strings.Contains(content, s) || strings.Contains(content, base64.StdEncoding.EncodeToString([]byte(s))) {
				t.Errorf("%s has the secret %q", name, s)
			}
		}
	}
}

// The secrets that are planted.
const (
	tunnelKey   = "planted-key-of-the-tunnel-7c1f"
	kubeToken   = "planted-token-of-the-kubeconfig-52ab"
	environment = "planted-in-the-environment-93de"
)

// plant puts a secret into the environment of the agent and of the command, and a journal beside
// them whose lines have the token.
func plant(t *testing.T) {
	t.Helper()
	t.Setenv("BEELINE_TEST_PLANTED", environment)
	dir := t.TempDir()
	journal := "#!/bin/sh\necho \"the log of $*\"\necho 'request failed: Authorization: Bearer " + kubeToken + "'\n"
	check(t, os.WriteFile(filepath.Join(dir, "journalctl"), []byte(journal), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// tunnelSecret writes the file of the tunnel's key, and returns its name and the key as it may be
// shown: as text, and as the mark that packets have.
func tunnelSecret(t *testing.T) (name string, forms []string) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "tunnel-key")
	check(t, os.WriteFile(name, []byte(tunnelKey+"\n"), 0o600))
	secrets, err := tunnel.ReadSecrets(name)
	check(t, err)
	mark, _ := secrets.Marks()
	return name, []string{
		tunnelKey, string(mark[:]), fmt.Sprintf("%x", mark), fmt.Sprintf("%d", mark),
		fmt.Sprint(binary.LittleEndian.Uint64(mark[:])), fmt.Sprint(binary.BigEndian.Uint64(mark[:])),
	}
}

// TestReport: a report has what there is to know, with the agent up and down, and no secrets.
func TestReport(t *testing.T) {
	plant(t)
	key, secrets := tunnelSecret(t)
	secrets = append(secrets, kubeToken, environment)
	n := newNode(t, "--devices", "up*", "--forwarding-mode", "dsr", "--node-ip", lab.Node4.String(), "--dsr-secret-file", key)
	n.ServeBackends()
	client := n.Outside.Socket("tcp4") // open until the end, so that the flow is there
	check(t, client.Connect(addrPort("192.0.2.1:30080")))
	_, _, err := client.Receive()
	check(t, err)
	foreign := n.attachStrangers(t)
	up := n.report(t)
	up.wantNone(t, secrets...)
	for _, pin := range []string{"status.txt", "verify.txt", "services.txt", "backends.txt"} {
		if up[pin] == "" {
			t.Errorf("%s is missing:\n%s", pin, up["index.txt"])
		}
	}
	up.want(t, "index.txt", "about node "+lab.NodeName, "1 removed that look like secrets")
	up.want(t, "config.yaml", "dsrSecretFile: "+key, "bindAddress")
	up.want(t, "configz.json", "dsrSecretFile")
	up.want(t, "health.txt", "/healthz: 200 OK", "/livez: 200 OK", "/startupz: 200 OK")
	up.want(t, "metrics.txt", `beeline_table_entries{map="bl_service"}`)
	up.want(t, "services.txt", "web", "ring")
	up.want(t, "verify.txt", "foreign-before", "stranger")
	up.want(t, "flows.txt", "1 flow.", "default/web:web", "0.0.0.0:")
	up.want(t, "network.txt", "uplink veth", "192.0.2.1/24", "tcx ingress program", " bl_ingress", foreign+" stranger")
	up.want(t, "cgroup.txt", "cgroup "+n.Cgroup, " bl_connect4", " stranger")
	up.want(t, "programs.txt", "name bl_connect4", "name stranger")
	up.want(t, "links.txt", "tcx program "+foreign+" stranger ifindex", "cgroup program")
	up.want(t, "kernel.txt", "Linux version", "BTF: ", "features: all that Beeline needs")
	up.want(t, "routes.txt", "192.0.2.2")
	up.want(t, "log.txt", "the log of --quiet", "_COMM=beeline-agent", "Bearer [removed]")
	if strings.Contains(up["flows.txt"], lab.Outside4.String()) {
		t.Errorf("flows.txt names the client:\n%s", up["flows.txt"])
	}
	n.report(t, "--clients").want(t, "flows.txt", lab.Outside4.String())

	n.end()
	down := n.report(t)
	down.wantNone(t, secrets...)
	down.want(t, "status.txt", "DOWN")
	down.want(t, "services.txt", "web", "ring")
	down.want(t, "config.yaml", "dsrSecretFile: "+key)
	for _, page := range []string{"health.txt", "metrics.txt", "configz.json"} {
		down.wantMissing(t, page, "no agent runs")
	}
}

// attachStrangers attaches programs of somebody else before Beeline's, and returns the id of the one
// at tc.
func (n *node) attachStrangers(t *testing.T) (id string) {
	t.Helper()
	attach := func(l link.Link, err error) *link.Info {
		check(t, err)
		t.Cleanup(func() { check(t, l.Close()) })
		info, err := l.Info()
		check(t, err)
		return info
	}
	attach(link.AttachCgroup(link.CgroupOptions{
		Path: n.Cgroup, Attach: ebpf.AttachCGroupInet4Connect,
		Program: stranger(t, ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Connect, 1),
	}))
	var tcx link.Link
	ifindex := n.uplink(t)
	err := n.Host.Run(func() (err error) {
		tcx, err = link.AttachTCX(link.TCXOptions{
			Interface: ifindex, Attach: ebpf.AttachTCXIngress, Anchor: link.Head(),
			Program: stranger(t, ebpf.SchedCLS, ebpf.AttachTCXIngress, -1),
		})
		return err
	})
	return fmt.Sprint(attach(tcx, err).Program)
}

// TestReportOfACluster: the token of a kubeconfig is in no report, although the command asks the API
// server with it; a server that does not answer is named and costs no other part.
func TestReportOfACluster(t *testing.T) {
	plant(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	check(t, os.WriteFile(kubeconfig, []byte(`apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: `+kubeToken+`}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
`), 0o600))
	n := newNode(t) // maps are pinned once an agent has served
	n.end()
	n.Process = n.Launch("--manifests=", "--kubeconfig", kubeconfig, "--node-ip", lab.Node4.String())
	lab.Eventually(t, "the agent notes its configuration", func() bool {
		if n.Ended() {
			t.Fatalf("the agent ended: %v", n.Wait())
		}
		maps, err := bpfmap.Open(datapath.Dir(n.BPFFS))
		if err != nil {
			return false
		}
		defer maps.Close()
		return strings.Contains(string(statusmap.New(maps).Config()), kubeconfig)
	})
	a := n.report(t)
	a.wantNone(t, kubeToken, environment)
	a.want(t, "config.yaml", "kubeconfig: "+kubeconfig)
	a.want(t, "verify.txt", "Not checked: tables: ")
	a.want(t, "status.txt", "running")
	a.want(t, "services.txt", "web")
	a.want(t, "log.txt", "Bearer [removed]")
}
