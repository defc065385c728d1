package agent_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/lab"
)

// writeConfig writes a configuration file and returns its name.
func writeConfig(t *testing.T, documents ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(name, []byte(strings.Join(documents, "---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// kubeProxyConfig is a configuration of kube-proxy with some lines.
func kubeProxyConfig(lines string) string {
	return "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" + lines
}

// TestConfigFile: what a file says holds, a flag goes before it, and what has no effect
// is told once.
func TestConfigFile(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	h.ServeBackends()
	s := h.NewStandalone(lab.Service("web", `{clusterIP: 10.96.0.1, type: NodePort, ports: [{port: 80, nodePort: 30080}]}`),
		lab.Slice("web", "8080/TCP", backends(2)...))
	s.Start("--config", writeConfig(t, kubeProxyConfig(`
hostnameOverride: of-the-file
nodePortAddresses: [192.0.2.0/24]
oomScoreAdj: 7
logging: {format: json}
mode: ipvs
ipvs: {strictARP: true, scheduler: rr}
metricsBindAddress: 127.0.0.1:11249
healthzBindAddress: 0.0.0.0:0
`), "apiVersion: config.beeline.io/v1alpha1\nkind: BeelineConfiguration\ndevices: [none]\nwebBindAddress: 127.0.0.1\n"))

	mustReach(t, h, "tcp4", netip.AddrPortFrom(lab.Node4, 30080))
	if !fails(h, netip.AddrPortFrom(lab.Backend4(3), 30080), unix.ECONNREFUSED)() {
		t.Error("a NodePort answers on an address outside of nodePortAddresses")
	}
	if _, err := h.Get("http://127.0.0.1:11249/metrics"); err != nil {
		t.Error(err)
	}
	if _, err := h.Get("http://127.0.0.1:10256/healthz"); err == nil {
		t.Error("health is served although its port is 0")
	}
	if page, err := h.Get("http://127.0.0.1:10245/top"); err != nil || !strings.Contains(page, `"running":true`) || !strings.Contains(page, `"name":"web"`) {
		t.Errorf("the web page has %s, %v", page, err)
	}
	score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", s.PID()))
	if err != nil || strings.TrimSpace(string(score)) != "7" {
		t.Errorf("oom_score_adj is %q: %v", score, err)
	}
	out := s.Output()
	if n := strings.Count(out, `"fields":"ipvs.strictARP mode"`); n != 1 {
		t.Errorf("what has no effect is told %d times as JSON:\n%s", n, out)
	}
	if !strings.Contains(out, `"node":"`+lab.NodeName+`"`) {
		t.Errorf("the flag's node name is not used:\n%s", out)
	}
}

// TestNodePortRange: NodePorts of manifests are those of the range that is given, chosen by
// hand or assigned.
func TestNodePortRange(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	h.ServeBackends()
	s := h.NewStandalone(
		lab.Service("web", `{clusterIP: 10.96.0.1, type: NodePort, ports: [{port: 80, nodePort: 8443}]}`),
		lab.Slice("web", "8080/TCP", backends(2)...),
		lab.Service("any", `{clusterIP: 10.96.0.2, type: NodePort, ports: [{port: 80}]}`),
		lab.Slice("any", "8080/TCP", backends(2)...))
	s.Start("--service-node-port-range", "8443+1")
	mustReach(t, h, "tcp4", netip.AddrPortFrom(lab.Node4, 8443))
	mustReach(t, h, "tcp4", netip.AddrPortFrom(lab.Node4, 8444))
}

// TestKubeProxyConfigMap: the agent serves a cluster with what a cluster's ConfigMap for
// kube-proxy says, and shows it as kube-proxy does.
func TestKubeProxyConfigMap(t *testing.T) {
	c := &cluster{t: t, server: apiserver.Start(t), host: lab.NewHost(t)}
	c.client = c.server.Client(t)
	c.host.ServeBackends()
	c.host.Relay(strings.TrimPrefix(c.server.Config.Host, "https://"))
	content, err := os.ReadFile("../../pkg/config/testdata/kubeadm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(content), "/var/lib/kube-proxy/kubeconfig.conf", c.server.Kubeconfig)
	text = strings.ReplaceAll(text, `contentType: ""`, "contentType: application/json")
	c.host.Start(lab.AgentBinary(t), "--config", writeConfig(t, text), "--hostname-override", "Node-1",
		"--cgroup-root", c.host.Cgroup, "--bpffs", c.host.BPFFS)
	c.createService("web", "10.96.0.77")
	c.putSlice("web", endpoint(1, true), endpoint(2, true))
	c.eventuallyOnly(netip.MustParseAddrPort("10.96.0.77:80"), 1, 2)

	page, err := c.host.Get("http://127.0.0.1:10249/configz")
	if err != nil {
		t.Fatal(err)
	}
	var configz struct {
		KubeProxy kubeproxyconfig.KubeProxyConfiguration `json:"kubeproxy.config.k8s.io"`
		Beeline   struct{ BPFFS string }                 `json:"config.beeline.io"`
	}
	if err := json.Unmarshal([]byte(page), &configz); err != nil {
		t.Fatal(err)
	}
	k := &configz.KubeProxy
	if k.ClusterCIDR != "10.244.0.0/16,fd00:10:244::/56" || k.ClientConnection.Kubeconfig != c.server.Kubeconfig ||
		k.Conntrack.TCPEstablishedTimeout.Duration != 24*time.Hour || configz.Beeline.BPFFS != c.host.BPFFS {
		t.Errorf("/configz is %s", page)
	}
}

// TestUnknownField: a field that kube-proxy got in a later version, as kubeadm upgrade adds
// it, is told with file and line and counted; the agent serves, and can be taken down.
func TestUnknownField(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	h.ServeBackends()
	s := h.NewStandalone(web, webSlice)
	config := writeConfig(t, kubeProxyConfig("oomScoreAdj: 7\nnewInTheNextVersion: {a: 1}\n"),
		"apiVersion: config.beeline.io/v1alpha1\nkind: BeelineConfiguration\nbpffs: "+h.BPFFS+"\n")
	s.Start("--config", config)
	mustReach(t, h, "tcp4", webTCP)
	want := config + ": document 1: line 4: newInTheNextVersion: unknown field"
	lab.Eventually(t, "the log has "+want, func() bool { return strings.Contains(s.Output(), want) })
	page, err := h.Get("http://127.0.0.1:10249/metrics")
	if err != nil || !strings.Contains(page, "\nbeeline_config_unknown_fields 1\n") {
		t.Errorf("the field is not counted: %v", err)
	}
	s.Signal(unix.SIGTERM)
	_ = s.Wait()
	down := h.Start(lab.AgentBinary(t), "--cleanup", "--config", config)
	if err := down.Wait(); err != nil || !strings.Contains(down.Output(), "removed "+h.BPFFS) {
		t.Errorf("cleanup: %v:\n%s", err, down.Output())
	}
}

// TestWrongConfigFile: everything wrong with files and flags is told before anything is
// done.
func TestWrongConfigFile(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	s := h.NewStandalone()
	form := writeConfig(t, kubeProxyConfig("conntrack: {min: many}\n"),
		"apiVersion: config.beeline.io/v1alpha1\nkind: BeelineConfiguration\ndsrport: 1\n")
	wantRefusal(t, s.Launch("--config", form),
		form+": document 1: line 3: conntrack.min: must be an integer", form+": document 2: line 7: dsrport: unknown field")
	value := writeConfig(t, kubeProxyConfig("clusterCIDR: 10.0.0.0/40\noomScoreAdj: 9999\n"))
	wantRefusal(t, s.Launch("--config", value, "--oom-score-adj", "5000"),
		value+": document 1: line 3: clusterCIDR[0]: Invalid value", "--oom-score-adj: Invalid value: 5000: must be from -1000 to 1000")
}

// netfilterValue returns a setting of the host's connection tracking.
func netfilterValue(t *testing.T, h *lab.Host, name string) (value int) {
	t.Helper()
	err := h.Thread(func() error {
		content, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
		if err != nil {
			return err
		}
		value, err = strconv.Atoi(strings.TrimSpace(string(content)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// TestConntrackSettings: for a cluster, netfilter's timeouts become those of the
// configuration; what may not be set in this namespace stops nothing. With manifests
// they stay.
func TestConntrackSettings(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_max"); err != nil {
		t.Skip("netfilter's connection tracking is not loaded")
	}
	h := lab.NewHost(t)
	before := netfilterValue(t, h, "nf_conntrack_udp_timeout")
	config := writeConfig(t, kubeProxyConfig(`
conntrack: {maxPerCore: 1000, min: 1000, udpTimeout: 77s, tcpCloseWaitTimeout: 88s, tcpBeLiberal: true}
`))
	s := h.NewStandalone()
	s.Start("--config", config)
	if got := netfilterValue(t, h, "nf_conntrack_udp_timeout"); got != before {
		t.Errorf("with manifests the time-out became %d, from %d", got, before)
	}
	s.Signal(unix.SIGTERM)
	_ = s.Wait()

	agent := h.Start(lab.AgentBinary(t), "--config", config, "--master", "http://127.0.0.1:1",
		"--hostname-override", lab.NodeName, "--cgroup-root", h.Cgroup, "--bpffs", h.BPFFS)
	for name, want := range map[string]int{
		"nf_conntrack_udp_timeout":             77,
		"nf_conntrack_tcp_timeout_close_wait":  88,
		"nf_conntrack_tcp_timeout_established": 86400,
		"nf_conntrack_tcp_be_liberal":          1,
	} {
		lab.Eventually(t, name, func() bool { return netfilterValue(t, h, name) == want })
	}
	if agent.Ended() {
		t.Errorf("the agent ended: %v", agent.Wait())
	}
}
