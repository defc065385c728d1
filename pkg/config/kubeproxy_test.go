package config

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/programs"
	"github.com/beeline-lb/beeline/tests/tier"
)

// kubeProxy returns the path of a real kube-proxy.
func kubeProxy(t *testing.T) string {
	t.Helper()
	tier.Slow(t, "needs a kube-proxy, which takes minutes to build")
	dir, err := apiserver.Build(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "kube-proxy")
}

// TestLikeKubeProxy gives the same command lines to a real kube-proxy and to Beeline.
// What kube-proxy writes is read as it is, and is what Beeline makes of the flags.
func TestLikeKubeProxy(t *testing.T) {
	binary := kubeProxy(t)
	for _, tc := range []struct {
		args string
		// differ are the fields in which Beeline differs.
		differ []string
	}{
		{"", []string{"iptables.minSyncPeriod", "mode"}},
		{"--proxy-mode=iptables --iptables-min-sync-period=5s --iptables-sync-period=1m --ipvs-sync-period=2m --masquerade-all", nil},
		{"--proxy-mode=ipvs --ipvs-min-sync-period=5s --ipvs-sync-period=1m --iptables-sync-period=2m --masquerade-all" +
			" --ipvs-scheduler=sh --ipvs-exclude-cidrs=10.0.0.0/8,fd00::/8 --ipvs-strict-arp --ipvs-tcp-timeout=1m" +
			" --ipvs-tcpfin-timeout=2m --ipvs-udp-timeout=3m", nil},
		{"--proxy-mode=nftables --iptables-min-sync-period=5s --iptables-sync-period=1m --masquerade-all", nil},
		{"--proxy-mode=nftables --iptables-min-sync-period=5s --nodeport-addresses=10.0.0.0/8,fd00::/8", nil},
		{"--proxy-mode=iptables --iptables-min-sync-period=1s --iptables-masquerade-bit=9 --iptables-localhost-nodeports=false" +
			" --bind-address=fd00::1 --healthz-bind-address=[::]:1234 --metrics-bind-address=0.0.0.0:1235 --bind-address-hard-fail" +
			" --profiling --oom-score-adj=-5 --hostname-override=Node-1 --config-sync-period=1m --show-hidden-metrics-for-version=1.35" +
			" --kubeconfig=/k --kube-api-burst=20 --kube-api-qps=7.5 --kube-api-content-type=application/json", nil},
		{"--proxy-mode=iptables --iptables-min-sync-period=1s --detect-local-mode=NodeCIDR --cluster-cidr=10.0.0.0/8,fd00::/8" +
			" --pod-bridge-interface=br0 --pod-interface-name-prefix=veth --nodeport-addresses=primary", nil},
		{"--proxy-mode=iptables --iptables-min-sync-period=1s --conntrack-max-per-core=0 --conntrack-min=5 --conntrack-tcp-be-liberal" +
			" --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=2m --conntrack-udp-timeout=3m" +
			" --conntrack-udp-timeout-stream=4m", nil},
		{"--proxy-mode=iptables --iptables-min-sync-period=1s --v=4 --vmodule=a=1,b=2 --log-flush-frequency=3s --logging-format=text", nil},
	} {
		t.Run(tc.args, func(t *testing.T) {
			args := strings.Fields(tc.args)
			written := filepath.Join(t.TempDir(), "written.yaml")
			cmd := exec.CommandContext(t.Context(), binary, append(args, "--write-config-to="+written)...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("kube-proxy: %v\n%s", err, out)
			}
			theirs, err := load(t, "--config", written)
			if err != nil {
				t.Fatal(err)
			}
			ours, err := load(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			if ours.KubeProxy.HostnameOverride != "" { // kept as given until it is used
				ours.KubeProxy.HostnameOverride = strings.ToLower(ours.KubeProxy.HostnameOverride)
			}
			got := differences("", tree(ours.KubeProxy), tree(theirs.KubeProxy))
			for i := range got {
				got[i] = strings.TrimPrefix(got[i], ".")
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.differ) {
				t.Errorf("differs in %q, want %q\nkube-proxy %+v\nBeeline    %+v", got, tc.differ, theirs.KubeProxy, ours.KubeProxy)
			}
		})
	}
}

// TestKubeProxyDefaults reads what kube-proxy writes without flags: nothing in it is
// without effect, and everything honoured has the default that Beeline has.
func TestKubeProxyDefaults(t *testing.T) {
	written := filepath.Join(t.TempDir(), "written.yaml")
	if out, err := exec.CommandContext(t.Context(), kubeProxy(t), "--write-config-to="+written).CombinedOutput(); err != nil {
		t.Fatalf("kube-proxy: %v\n%s", err, out)
	}
	theirs, ours := mustSettings(t, "--config", written), mustSettings(t)
	if fields := theirs.Unused(); len(fields) > 0 {
		t.Errorf("%q are said to be without effect", fields)
	}
	theirs.Config, ours.Config = nil, nil
	ours.MinSyncPeriod = defaultMinSyncPeriod
	equal(t, "the settings", theirs, ours)
}

// TestKubeProxyFlags asks a real kube-proxy for its flags, and its sources for those that its help hides:
// each is known here, but for those that have nothing to do with serving.
func TestKubeProxyFlags(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), kubeProxy(t), "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("kube-proxy: %v\n%s", err, out)
	}
	ours := pflag.NewFlagSet("", pflag.ContinueOnError)
	AddFlags(ours)
	elsewhere := []string{"boot-id-file", "machine-id-file", "init-only", "help", "version", "cleanup", "write-config-to"}
	found := regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z0-9-]+)`).FindAllStringSubmatch(string(out), -1)
	if len(found) < 50 {
		t.Fatalf("%d flags in\n%s", len(found), out)
	}
	hidden := hiddenFlags(t)
	if len(hidden) < 2 {
		t.Fatalf("flags that the help hides: %q", hidden)
	}
	for _, m := range append(found, hidden...) {
		if ours.Lookup(m[1]) == nil && !slices.Contains(elsewhere, m[1]) {
			t.Errorf("no flag --%s", m[1])
		}
	}
}

// hiddenFlags returns kube-proxy's deprecated and hidden flags.
func hiddenFlags(t *testing.T) [][]string {
	t.Helper()
	dir, err := programs.Kubernetes.Sources(t.Context(), "k8s.io/kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "cmd/kube-proxy/app/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var found [][]string
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, regexp.MustCompile(`\.Mark(?:Deprecated|Hidden)\("([a-z0-9-]+)"`).FindAllStringSubmatch(string(text), -1)...)
	}
	return found
}

// TestDeprecatedPorts: the port is that of an address without one, and 0 is off, as in kube-proxy's
// addressFromDeprecatedFlags.
func TestDeprecatedPorts(t *testing.T) {
	for args, want := range map[string]string{
		"--healthz-port=1234":                                          "0.0.0.0:10256 127.0.0.1:10249",
		"--healthz-port=0":                                             addressOff + " 127.0.0.1:10249",
		"--metrics-port=0 --metrics-bind-address=[::]:1":               "0.0.0.0:10256 " + addressOff,
		"--metrics-port=1234 --metrics-bind-address=[::]:1":            "0.0.0.0:10256 [::]:1",
		"--metrics-port=1234 --metrics-bind-address=::":                "0.0.0.0:10256 [::]:1234",
		"--healthz-port=1234 --healthz-bind-address=10.0.0.1":          "10.0.0.1:1234 127.0.0.1:10249",
		"--healthz-port=1234 --healthz-bind-address= --metrics-port=9": addressOff + " 127.0.0.1:10249",
	} {
		c, err := load(t, strings.Fields(args)...)
		if err != nil {
			t.Errorf("%s: %v", args, err)
		} else if got := c.KubeProxy.HealthzBindAddress + " " + c.KubeProxy.MetricsBindAddress; got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
	c, err := load(t, "--healthz-port=70000", "--healthz-bind-address=10.0.0.1")
	if err == nil {
		_, err = c.Settings()
	}
	if err == nil || !strings.Contains(err.Error(), "--healthz-port") {
		t.Errorf("a port that is none: %v", err)
	}
}
