package config

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/tools/txtar"

	"github.com/beeline-lb/beeline/pkg/flow"
	"github.com/beeline-lb/beeline/pkg/model"
)

// load reads what a command line leads to.
func load(t *testing.T, args ...string) (*Config, error) {
	t.Helper()
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags := AddFlags(set)
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	return flags.Load()
}

// mustSettings reads what a command line leads to, which must be right.
func mustSettings(t *testing.T, args ...string) *Settings {
	t.Helper()
	c, err := load(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Settings()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// equal fails the test when a setting is not as it should be.
func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// TestFaults reads files of which each has a list of everything that is wrong.
func TestFaults(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/faults.txtar")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for i := 0; i+1 < len(archive.Files); i += 2 {
		file, want := archive.Files[i], archive.Files[i+1]
		t.Run(strings.TrimSuffix(file.Name, ".yaml"), func(t *testing.T) {
			name := filepath.Join(dir, file.Name)
			if err := os.WriteFile(name, file.Data, 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := load(t, "--config", name)
			if err == nil {
				_, err = c.Settings()
			}
			if err == nil {
				t.Fatal("got no error")
			}
			got := strings.ReplaceAll(err.Error(), name+": ", "") + "\n"
			wanted := strings.ReplaceAll(string(want.Data), "DIR", dir)
			if sorted(got) != sorted(wanted) {
				t.Errorf("got\n%swant\n%s", got, wanted)
			}
		})
	}
}

// sorted sorts lines: faults are told by document, but in no order of lines.
func sorted(text string) string {
	lines := strings.SplitAfter(strings.TrimSpace(text)+"\n", "\n")
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// TestKubeadm reads the ConfigMap of a cluster that kubeadm has set up: empty strings,
// zeros and nulls are defaults.
func TestKubeadm(t *testing.T) {
	s := mustSettings(t, "--config", "testdata/kubeadm.yaml", "--hostname-override", "n")
	want := Default()
	want.KubeProxy.HostnameOverride = "n"
	want.KubeProxy.ClientConnection.Kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"
	want.KubeProxy.ClusterCIDR = "10.244.0.0/16,fd00:10:244::/56"
	equal(t, "the configuration", tree(s.KubeProxy), tree(want.KubeProxy))
	equal(t, "Beeline's part", s.Beeline, want.Beeline)
	equal(t, "the unused", s.Unused(), nil)
	equal(t, "PodRanges", s.PodRanges, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")})
	equal(t, "MinSyncPeriod", s.MinSyncPeriod, 0)
	equal(t, "SyncPeriod", s.SyncPeriod, 30*time.Second)
	equal(t, "TCPEstablished", s.Timeouts.TCPEstablished, 24*time.Hour)
	equal(t, "Flows", s.Sizes.Flows, readMemory().sizes().Flows)
}

// TestPartial reads a file that names few fields, of both parts, and some that have no
// effect.
func TestPartial(t *testing.T) {
	s := mustSettings(t, "--config", "testdata/partial.yaml")
	equal(t, "NodeName", s.NodeName, "node-1")
	equal(t, "NodePorts.Primary", s.NodePorts.Primary, true)
	equal(t, "MinSyncPeriod", s.MinSyncPeriod, 2*time.Second)
	equal(t, "MasqueradeAll", s.MasqueradeAll, false)
	equal(t, "Flows", s.Sizes.Flows, 1000)
	equal(t, "TCPEstablished", s.Timeouts.TCPEstablished, flow.DefaultTimeouts.TCPEstablished)
	equal(t, "TCPCloseWait", s.Timeouts.TCPCloseWait, time.Hour)
	equal(t, "UDP", s.Timeouts.UDP, 45*time.Second)
	equal(t, "SCTP", s.Timeouts.SCTP, time.Minute)
	equal(t, "devices", s.Beeline.Devices, []string{"eth*"})
	equal(t, "the scheduler", s.KubeProxy.IPVS.Scheduler, "ovf")
	equal(t, "the unused", s.Unused(), []string{"featureGates.Some", "iptables.masqueradeAll", "ipvs.scheduler", "ipvs.strictARP", "mode"})
}

// TestOtherVersions reads fields that kube-proxy no longer has, or does not have yet.
func TestOtherVersions(t *testing.T) {
	s := mustSettings(t, "--config", "testdata/old.yaml")
	equal(t, "the unused", s.Unused(), nil)
	unknown(t, s, "testdata/old.yaml: document 1: line 15: resourceContainer: unknown field",
		"testdata/old.yaml: document 1: line 16: udpIdleTimeout: unknown field")
	equal(t, "HealthzAddress", s.HealthzAddress, "[::]:10256")
	equal(t, "WebAddress", s.WebAddress, "")
	equal(t, "MetricsAddress", s.MetricsAddress, "[::1]:10249")
	equal(t, "NodeAddrs", s.NodeAddrs, nil)
}

// unknown fails the test when the fields that are not known are not these.
func unknown(t *testing.T, s *Settings, want ...string) {
	t.Helper()
	count, faults := s.Unknown()
	var got []string
	for _, f := range faults {
		got = append(got, f.Error())
	}
	equal(t, "the unknown", got, want)
	equal(t, "how many are unknown", count, len(want))
}

// TestNewerVersion reads the ConfigMap of a kube-proxy that has fields which this version
// does not know; all others count.
func TestNewerVersion(t *testing.T) {
	s := mustSettings(t, "--config", "testdata/newer.yaml")
	unknown(t, s, "testdata/newer.yaml: document 1: line 6: conntrack.tcpLooseness: unknown field",
		"testdata/newer.yaml: document 1: line 7: ebpf: unknown field")
	equal(t, "UDP", s.Timeouts.UDP, 45*time.Second)
	equal(t, "PodRanges", s.PodRanges, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")})
}

// TestBPFFS reads where Beeline is in the kernel without minding anything else.
func TestBPFFS(t *testing.T) {
	beeline := "apiVersion: " + BeelineAPIVersion + "\nkind: " + BeelineKind + "\nbpffs: /elsewhere\nfieldOfLater: {a: 1}\ndsrPort: wrong\n"
	name := filepath.Join(t.TempDir(), "beeline.yaml")
	if err := os.WriteFile(name, []byte("apiVersion: kubeproxy.config.k8s.io/v2\nkind: KubeProxyConfiguration\nmode: 7\n---\n"+beeline), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args, want string
	}{
		{"", "/sys/fs/bpf"},
		{"--config FILE", "/elsewhere"},
		{"--config testdata/newer.yaml --config FILE", "/elsewhere"},
		{"--config FILE --bpffs /flag", "/flag"},
		{"--config /no/such/file --bpffs /flag", "/flag"},
		{"--config /no/such/file", "error: /no/such/file"},
	} {
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags := AddFlags(set)
		args := strings.Fields(tc.args)
		if i := slices.Index(args, "FILE"); i >= 0 {
			args[i] = name // which may have spaces
		}
		if err := set.Parse(args); err != nil {
			t.Fatal(err)
		}
		got, err := flags.BPFFS()
		if wrong, ok := strings.CutPrefix(tc.want, "error: "); ok {
			if err == nil || !strings.Contains(err.Error(), wrong) || !strings.Contains(err.Error(), "--bpffs") {
				t.Errorf("%q: error %v", tc.args, err)
			}
			continue
		}
		if err != nil || got != tc.want {
			t.Errorf("%q: got %q, want %q: %v", tc.args, got, tc.want, err)
		}
	}
}

// TestFlagsWin sets flags over files.
func TestFlagsWin(t *testing.T) {
	s := mustSettings(t, "--config", "testdata/partial.yaml",
		"--hostname-override", "other", "--nodeport-addresses", "10.0.0.0/8,fd00::/8", "--devices", "none",
		"--metrics-bind-address=", "--healthz-bind-address", "127.0.0.1", "--web-bind-address", "::1", "--min-sync-period", "0", "--max-flows", "2000",
		"--ipvs-min-sync-period", "7s", "--conntrack-tcp-timeout-established", "3h", "-v", "3")
	equal(t, "NodeName", s.NodeName, "other")
	equal(t, "NodePorts", s.NodePorts.CIDRs, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")})
	equal(t, "devices", s.Beeline.Devices, []string{"none"})
	equal(t, "MetricsAddress", s.MetricsAddress, "")
	equal(t, "HealthzAddress", s.HealthzAddress, "127.0.0.1:10256")
	equal(t, "WebAddress", s.WebAddress, "[::1]:10245")
	equal(t, "MinSyncPeriod", s.MinSyncPeriod, 0)
	equal(t, "Flows", s.Sizes.Flows, 2000)
	equal(t, "TCPEstablished", s.Timeouts.TCPEstablished, 3*time.Hour)
	equal(t, "the verbosity", s.KubeProxy.Logging.Verbosity, 3)
	// What flags do not name is the file's.
	equal(t, "UDP", s.Timeouts.UDP, 45*time.Second)
	equal(t, "PodRanges", s.PodRanges, []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")})
}

// TestSeveralFiles reads a part each from two files.
func TestSeveralFiles(t *testing.T) {
	beeline := filepath.Join(t.TempDir(), "beeline.yaml")
	content := "apiVersion: " + BeelineAPIVersion + "\nkind: " + BeelineKind + "\nsocketLB: host-namespace-only\n"
	if err := os.WriteFile(beeline, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustSettings(t, "--config", "testdata/kubeadm.yaml", "--config", beeline)
	equal(t, "socketLB", s.Beeline.SocketLB, SocketLBHost)
	equal(t, "kubeconfig", s.KubeProxy.ClientConnection.Kubeconfig, "/var/lib/kube-proxy/kubeconfig.conf")

	_, err := load(t, "--config", beeline, "--config", "testdata/partial.yaml", "--config", "testdata/missing.yaml")
	for _, want := range []string{
		"testdata/partial.yaml: document 2: line 25: kind: there is a BeelineConfiguration in " + beeline + " already (document 1)",
		"--config: open testdata/missing.yaml",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

// TestWrite writes configurations and reads them back.
func TestWrite(t *testing.T) {
	for _, args := range [][]string{
		nil,
		{"--config", "testdata/kubeadm.yaml"},
		{"--config", "testdata/partial.yaml"},
		{"--config", "testdata/old.yaml"},
		{"--healthz-bind-address=", "--metrics-bind-address=", "--node-ip", "10.0.0.1,fd00::1", "--bind-address", "fd00::1",
			"--manifests", "/m", "--log-flush-frequency", "1s", "--vmodule", "a=1,b=2", "--proxy-mode", "ipvs", "--ipvs-scheduler", "sh",
			"--min-sync-period", "3s", "--conntrack-min", "0", "--oom-score-adj", "0", "--feature-gates", "A=true", "--dsr-port", "0", "--dsr-clamp-mss=false"},
	} {
		c, err := load(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(t.TempDir(), "written.yaml")
		if err := c.Write(name); err != nil {
			t.Fatal(err)
		}
		back, err := load(t, "--config", name)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, strings.Join(args, " "), tree(back.KubeProxy), tree(c.KubeProxy))
		equal(t, strings.Join(args, " "), back.Beeline, c.Beeline)
		if before, after := mustSettings(t, args...), mustSettings(t, "--config", name); before.HealthzAddress != after.HealthzAddress {
			t.Errorf("health is served on %q, before on %q", after.HealthzAddress, before.HealthzAddress)
		}
	}
}

// TestFlowTable derives the size of the flow table from connection tracking's where
// that was chosen.
func TestFlowTable(t *testing.T) {
	equal(t, "the default", mustSettings(t).Sizes.Flows, readMemory().sizes().Flows)
	equal(t, "left alone", mustSettings(t, "--conntrack-max-per-core", "0").Sizes.Flows, readMemory().sizes().Flows)
	equal(t, "at least min", mustSettings(t, "--conntrack-max-per-core", "1", "--conntrack-min", "200000").Sizes.Flows, 400000)
	equal(t, "at most", mustSettings(t, "--conntrack-max-per-core", "1048577").Sizes.Flows, 2<<20)
	equal(t, "given", mustSettings(t, "--conntrack-max-per-core", "1048577", "--max-flows", "5000").Sizes.Flows, 5000)
}

// TestNodePortRange takes what kube-apiserver takes.
func TestNodePortRange(t *testing.T) {
	for value, want := range map[string][2]uint16{
		"30000-32767": {30000, 32767},
		"80-79+1":     {},
		"80-79":       {},
		"20000+100":   {20000, 20100},
		"4000":        {4000, 4000},
		"1-65535":     {1, 65535},
		"60000+9999":  {},
		"0-10":        {},
		"1-65536":     {},
		"a-b":         {},
	} {
		c, err := load(t, "--service-node-port-range", value)
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.Settings()
		if want == ([2]uint16{}) {
			if err == nil || !strings.Contains(err.Error(), "--service-node-port-range: Invalid value: \""+value+"\"") {
				t.Errorf("%s: error %v", value, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", value, err)
			continue
		}
		equal(t, value, [2]uint16{s.NodePortMin, s.NodePortMax}, want)
	}
	s := mustSettings(t)
	equal(t, "the default", [2]uint16{s.NodePortMin, s.NodePortMax}, [2]uint16{30000, 32767})
}

// TestExternalIPs: kube-proxy's feature counts.
func TestExternalIPs(t *testing.T) {
	for value, none := range map[string]bool{"AllowServiceExternalIPs=false": true, "AllowServiceExternalIPs=true": false, "Other=false": false} {
		s := mustSettings(t, "--feature-gates", value)
		equal(t, value, s.Allowed.NoExternalIPs, none)
		equal(t, value+" has an effect", len(s.Unused()) == 0, value != "Other=false")
	}
	equal(t, "by default", mustSettings(t).Allowed.NoExternalIPs, false)
}

// TestAnnotations: those count that are named; a forwarding mode not by default.
func TestAnnotations(t *testing.T) {
	const forwarding = "service.beeline.io/forwarding-mode"
	equal(t, "forwarding-mode by default", slices.Contains(mustSettings(t).Allowed.Annotations, forwarding), false)
	equal(t, "algorithm by default", slices.Contains(mustSettings(t).Allowed.Annotations, "service.beeline.io/algorithm"), true)
	equal(t, "named", mustSettings(t, "--allowed-annotations", forwarding).Allowed.Annotations, []string{forwarding})
	equal(t, "none", mustSettings(t, "--allowed-annotations", "none").Allowed.Annotations, nil)
	for _, wrong := range []string{"algorithm", "none," + forwarding} {
		c, err := load(t, "--allowed-annotations", wrong)
		if err == nil {
			_, err = c.Settings()
		}
		if err == nil || !strings.Contains(err.Error(), "--allowed-annotations[0]") || !strings.Contains(err.Error(), forwarding) {
			t.Errorf("%s: error %v", wrong, err)
		}
	}
}

// TestForwarding tells no port from port 0, and no tunnel from one that masqueradeAll
// forbids.
func TestForwarding(t *testing.T) {
	s := mustSettings(t)
	equal(t, "the default", s.Forwarding, model.SNAT)
	equal(t, "the default port", s.TunnelPort, 6091)
	equal(t, "the clamp by default", *s.Beeline.DSRClampMSS, true)
	s = mustSettings(t, "--forwarding-mode", "hybrid", "--dsr-port", "0", "--dsr-clamp-mss=false")
	equal(t, "hybrid", s.Forwarding, model.Hybrid)
	equal(t, "no port", s.TunnelPort, 0)
	equal(t, "no clamp", *s.Beeline.DSRClampMSS, false)
	equal(t, "snat", mustSettings(t, "--forwarding-mode", "snat", "--masquerade-all").Forwarding, model.SNAT)
	for _, mode := range []string{"dsr", "hybrid"} {
		c, err := load(t, "--forwarding-mode", mode, "--masquerade-all")
		if err == nil {
			_, err = c.Settings()
		}
		if err == nil || !strings.Contains(err.Error(), "--forwarding-mode") || !strings.Contains(err.Error(), "masqueradeAll") {
			t.Errorf("%s with masqueradeAll: %v", mode, err)
		}
	}
}

// TestNodeAddrs takes the node's IPs from both parts.
func TestNodeAddrs(t *testing.T) {
	addrs := func(list ...string) (parsed []netip.Addr) {
		for _, s := range list {
			parsed = append(parsed, netip.MustParseAddr(s))
		}
		return parsed
	}
	equal(t, "none", mustSettings(t).NodeAddrs, nil)
	equal(t, "bindAddress", mustSettings(t, "--bind-address", "10.0.0.1").NodeAddrs, addrs("10.0.0.1"))
	equal(t, "both", mustSettings(t, "--node-ip", "fd00::1", "--bind-address", "10.0.0.1").NodeAddrs, addrs("fd00::1", "10.0.0.1"))
	equal(t, "the same", mustSettings(t, "--node-ip", "10.0.0.1", "--bind-address", "10.0.0.1").NodeAddrs, addrs("10.0.0.1"))
}

// TestFlagsNameFields looks for the fields that flags are said to set: errors name the
// flag by them.
func TestFlagsNameFields(t *testing.T) {
	c := Default()
	data, err := json.Marshal(map[string]any{KubeProxyKind: c.KubeProxy, BeelineKind: c.Beeline})
	if err != nil {
		t.Fatal(err)
	}
	var all any
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	// Fields that JSON leaves out when they are empty.
	omitted := []string{"KubeProxyConfiguration.featureGates", "KubeProxyConfiguration.logging.vmodule",
		"KubeProxyConfiguration.logging.options.text.splitStream", "KubeProxyConfiguration.logging.options.json.splitStream"}
	for flag, path := range newFlagSet(c).fields {
		at, ok := all, true
		for _, name := range strings.Split(path, ".") {
			object, _ := at.(map[string]any)
			if at, ok = object[name]; !ok {
				break
			}
		}
		if !ok && !slices.Contains(omitted, path) {
			t.Errorf("--%s is said to set %s, which there is not", flag, path)
		}
	}
}

// TestChangedFile: a file is another one when its content is, or when it is gone.
func TestChangedFile(t *testing.T) {
	dir := t.TempDir()
	const kube, beeline = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n", "apiVersion: config.beeline.io/v1alpha1\nkind: BeelineConfiguration\n"
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(a, kube)
	write(b, beeline)
	c, err := load(t, "--config", a, "--config", b)
	if err != nil {
		t.Fatal(err)
	}
	write(a, kube)
	if got := c.Changed(); len(got) > 0 {
		t.Errorf("%q have changed, want none", got)
	}
	write(a, kube+"mode: nftables\n")
	if got := c.Changed(); !slices.Equal(got, []string{a}) {
		t.Errorf("%q have changed, want %s", got, a)
	}
	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	if got := c.Changed(); !slices.Equal(got, []string{a, b}) {
		t.Errorf("%q have changed, want both", got)
	}
	write(a, kube)
	write(b, beeline)
	if got := c.Changed(); len(got) > 0 {
		t.Errorf("%q have changed, want none", got)
	}
}

// TestMappedCIDR: IPv4 that is written as IPv6 is IPv4.
func TestMappedCIDR(t *testing.T) {
	s := mustSettings(t, "--cluster-cidr", "::ffff:10.244.0.0/112,fd00::/56")
	equal(t, "PodRanges", s.PodRanges, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00::/56")})
}
