package chart_test

import (
	"strings"
	"testing"
)

// TestWrongValues: a value that the chart does not know, or of the wrong form, is
// rejected, with its name.
func TestWrongValues(t *testing.T) {
	t.Parallel()
	h := newHelm(t, "")
	for _, c := range []struct {
		values string
		parts  []string
	}{
		{onNode + "nodeselector: {}", []string{"nodeselector", "not allowed"}},
		{onNode + "image: {name: x}", []string{"/image", "'name' not allowed"}},
		{onNode + "image: {pullPolicy: Sometimes}", []string{"/image/pullPolicy", "IfNotPresent"}},
		{onNode + "image: {digest: abc}", []string{"/image/digest", "sha256"}},
		{"apiServer: {host: 'https://192.0.2.1'}", []string{"/apiServer/host"}},
		{"apiServer: {host: '[fd00::1]'}", []string{"/apiServer/host"}},
		{"apiServer: {host: 192.0.2.1, port: 65536}", []string{"/apiServer/port", "65,535"}},
		{onNode + "config: {kind: BeelineConfiguration}", []string{"/config/kind"}},
		{onNode + "config: [devices]", []string{"/config", "object"}},
		{onNode + "extraArgs: [v=4]", []string{"/extraArgs/0"}},
		{onNode + "cgroupRoot: sys/fs/cgroup", []string{"/cgroupRoot"}},
		{onNode + "capabilities: [CAP_BPF]", []string{"/capabilities/0"}},
		{onNode + "privileged: 'true'", []string{"/privileged", "boolean"}},
		{onNode + "updateStrategy: {maxUnavailable: 0}", []string{"/updateStrategy/maxUnavailable"}},
		{onNode + "updateStrategy: {maxSurge: 1}", []string{"/updateStrategy", "maxSurge"}},
		{onNode + "metrics: {podMonitor: {interval: often}}", []string{"/metrics/podMonitor/interval"}},
		{onNode + "tolerations: [{operator: Exist}]", []string{"/tolerations/0/operator", "Exists"}},
		{onNode + "kubeProxyConfig: {clusterCIDR: 10.0.0.0/8}\nexistingKubeProxyConfigMap: {name: kube-proxy}",
			[]string{"kubeProxyConfig", "existingKubeProxyConfigMap.name"}},
		{"{}", []string{"no address of the API server", "apiServer.host", "kube-system/kube-proxy", "cluster-info"}},
	} {
		_, err := h.template(c.values)
		if err == nil {
			t.Errorf("accepted: %s", c.values)
			continue
		}
		for _, part := range c.parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("the rejection of %q does not say %q:\n%v", c.values, part, err)
			}
		}
	}
}

// TestLint runs helm lint, for which warnings are errors too.
func TestLint(t *testing.T) {
	t.Parallel()
	newHelm(t, "").must("lint", "--strict", chartDir(t))
}
