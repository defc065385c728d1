package chart_test

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/beeline-lb/beeline/tests/wait"
)

// podFields are the fields of a KubeProxyConfiguration that the chart finds.
type podFields struct {
	ClusterCIDR     string            `json:"clusterCIDR"`
	DetectLocalMode string            `json:"detectLocalMode"`
	DetectLocal     map[string]string `json:"detectLocal"`
}

// String returns them as words; "" when there are none.
func (f podFields) String() string {
	words := []string{f.ClusterCIDR, f.DetectLocalMode, f.DetectLocal["bridgeInterface"], f.DetectLocal["interfaceNamePrefix"]}
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

// podsOf returns the fields in the agent's configuration file.
func podsOf(t *testing.T, config *corev1.ConfigMap) string {
	t.Helper()
	_, kubeProxy, _ := strings.Cut(config.Data["config.yaml"], "\n---\n")
	var f podFields
	if err := yaml.Unmarshal([]byte(kubeProxy), &f); err != nil {
		t.Fatal(err)
	}
	return f.String()
}

// wantPods asks what an install with the values would find, and what its notes say of it.
func (c *cluster) wantPods(yaml, want, note string) {
	c.t.Helper()
	p, err := c.plan("install", onNode+yaml)
	if err != nil {
		c.t.Errorf("with %q, want %q: %v", yaml, want, err)
		return
	}
	if got := podsOf(c.t, find(c.t, decode(c.t, p.Manifest), func(m *corev1.ConfigMap) bool { return m.Name == release })); got != want {
		c.t.Errorf("with %q the pods are %q, want %q", yaml, got, want)
	}
	if notes := strings.Join(strings.Fields(p.Info.Notes), " "); !strings.Contains(notes, note) {
		c.t.Errorf("the notes do not say %q:\n%s", note, p.Info.Notes)
	}
}

// findsPods puts the places where pods' CIDRs can be found into the cluster, the last that is
// asked first.
func findsPods(c *cluster) {
	c.wantPods("", "", "Pods: no clusterCIDR was found.")
	c.podsOfNodes()
	c.podsOfCalico()
	c.podsOfFlannel()
	c.podsOfKubeadm()
	c.podsOfKubeProxy()
	c.podsOfValues()
	c.keepsPods()
}

// podsOfNodes leaves one node, which has CIDRs.
func (c *cluster) podsOfNodes() {
	node := func(name string, cidrs ...string) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
		if len(cidrs) > 0 {
			n.Spec.PodCIDR = cidrs[0]
		}
		if _, err := c.client.CoreV1().Nodes().Create(c.t.Context(), n, metav1.CreateOptions{}); err != nil {
			c.t.Fatal(err)
		}
	}
	node("with", "10.3.0.0/24", "fd00:3::/64")
	c.wantPods("", "NodeCIDR", "detectLocalMode NodeCIDR, taken from the podCIDRs that every Node has.")
	node("without")
	c.wantPods("", "", "no clusterCIDR was found")
	if err := c.client.CoreV1().Nodes().Delete(c.t.Context(), "without", metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// ipPools is the definition of Calico's pools, without a schema: what is in them may be odd.
const ipPools = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
	"metadata": {"name": "ippools.crd.projectcalico.org"},
	"spec": {"group": "crd.projectcalico.org", "scope": "Cluster",
		"names": {"kind": "IPPool", "listKind": "IPPoolList", "plural": "ippools", "singular": "ippool"},
		"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
			{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}`

const poolsPath = "/apis/crd.projectcalico.org/v1/ippools"

// request sends an object to the API server.
func (c *cluster) request(verb, path, body string) error {
	return c.client.CoreV1().RESTClient().(*rest.RESTClient).Verb(verb).AbsPath(path).
		SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(c.t.Context()).Error()
}

// podsOfCalico leaves two good pools and one for Services.
func (c *cluster) podsOfCalico() {
	if err := c.request(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", ipPools); err != nil {
		c.t.Fatal(err)
	}
	wait.Until(c.t, "the API server serves IPPools", func() bool { return c.request(http.MethodGet, poolsPath, "") == nil })
	pool := func(name string, spec any) {
		b, err := json.Marshal(map[string]any{
			"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": map[string]any{"name": name}, "spec": spec,
		})
		if err != nil {
			c.t.Fatal(err)
		}
		if err := c.request(http.MethodPost, poolsPath, string(b)); err != nil {
			c.t.Fatal(err)
		}
	}
	const good = "10.4.0.0/16,fd00:4::/48 ClusterCIDR"
	c.wantPods("", "NodeCIDR", "every Node")
	pool("a4", map[string]any{"cidr": "10.4.0.0/16"})
	pool("b6", map[string]any{"cidr": "fd00:4::/48", "allowedUses": []string{"Workload", "Tunnel"}})
	pool("c-services", map[string]any{"cidr": "192.0.2.0/24", "allowedUses": []string{"LoadBalancer"}})
	pool("d-none", "no pool")
	c.wantPods("", good, "clusterCIDR 10.4.0.0/16,fd00:4::/48, detectLocalMode ClusterCIDR, taken from Calico's IPPools.")
	for _, cidr := range []any{"10.4.0.0", []string{"10.4.0.0/16"}} {
		pool("e-broken", map[string]any{"cidr": cidr})
		c.wantPods("", "NodeCIDR", "every Node")
		if err := c.request(http.MethodDelete, poolsPath+"/e-broken", ""); err != nil {
			c.t.Fatal(err)
		}
	}
	c.wantPods("", good, "Calico's IPPools")
}

// podsOfFlannel leaves a good configuration.
func (c *cluster) podsOfFlannel() {
	if _, err := c.client.CoreV1().Namespaces().Create(c.t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-flannel"}}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	put := func(netConf string) {
		c.putConfigMap("kube-flannel", "kube-flannel-cfg", map[string]string{"net-conf.json": netConf})
	}
	const good = `{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:5::/56", "Backend": {"Type": "vxlan"}}`
	put(good)
	// Whoever may make namespaces can have made this one.
	c.wantPods("", "10.4.0.0/16,fd00:4::/48 ClusterCIDR", "Calico")
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "flannel"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "flannel"},
		Subjects: []rbacv1.Subject{
			{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "somebody"},
			{Kind: rbacv1.ServiceAccountKind, Name: "flannel", Namespace: "kube-flannel"},
		},
	}
	if _, err := c.client.RbacV1().ClusterRoleBindings().Create(c.t.Context(), binding, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	for netConf, want := range map[string]string{
		good: "10.5.0.0/16,fd00:5::/56 ClusterCIDR",
		`{"Network": "10.5.0.0/16", "IPv6Network": "fd00:5::/56"}`:                               "10.5.0.0/16 ClusterCIDR",
		`{"Network": "", "EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:5::/56"}`: "fd00:5::/56 ClusterCIDR",
	} {
		put(netConf)
		c.wantPods("", want, "taken from the ConfigMap kube-flannel/kube-flannel-cfg.")
	}
	for _, broken := range []string{"{", "[]", "null", `{"Network": {"a": 1}}`} {
		put(broken)
		c.wantPods("", "10.4.0.0/16,fd00:4::/48 ClusterCIDR", "Calico")
	}
	put(good)
}

// podsOfKubeadm leaves a good configuration.
func (c *cluster) podsOfKubeadm() {
	put := func(config string) {
		c.putConfigMap(namespace, "kubeadm-config", map[string]string{"ClusterConfiguration": config})
	}
	for _, broken := range []string{
		"", "no: {yaml", "- a", "7", "networking:", "networking: here", "networking: [podSubnet]",
		"networking: {podSubnet: 7}", "networking: {serviceSubnet: 10.96.0.0/12}", "networking: {podSubnet: '10.6.0.0/16,'}",
		"networking: {podSubnet: '10.6.0.0/16\nmasqueradeAll: true'}",
	} {
		put(broken)
		c.wantPods("", "10.5.0.0/16,fd00:5::/56 ClusterCIDR", "flannel")
	}
	put("networking: {podSubnet: 'FD00:6::/56, 10.6.0.0/16'}")
	c.wantPods("", "FD00:6::/56,10.6.0.0/16 ClusterCIDR", "taken from the ConfigMap kube-system/kubeadm-config.")
	put("networking: {podSubnet: 10.6.0.0/16}")
}

// podsOfKubeProxy leaves a good configuration.
func (c *cluster) podsOfKubeProxy() {
	put := func(config string) {
		c.putConfigMap(namespace, "kube-proxy", map[string]string{"config.conf": config})
	}
	for _, broken := range []string{
		"", "no: {yaml", "clusterCIDR: ''\ndetectLocalMode: ''", "clusterCIDR: [10.7.0.0/16]", "clusterCIDR: 10.7.0.0",
		"clusterCIDR: 10.7.0.0\ndetectLocalMode: NodeCIDR", "clusterCIDR: 10.7.0.0/16\ndetectLocalMode: Guess",
		"detectLocalMode: ClusterCIDR", "detectLocalMode: BridgeInterface", "detectLocalMode: {a: b}",
		"detectLocalMode: InterfaceNamePrefix\ndetectLocal: cali", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {bridgeInterface: cni0}",
	} {
		put(broken)
		c.wantPods("", "10.6.0.0/16 ClusterCIDR", "kubeadm")
	}
	for config, want := range map[string]string{
		"clusterCIDR: 10.7.0.0/16,fd00:7::/56\ndetectLocalMode: ''\nmasqueradeAll: true\ndetectLocal: {bridgeInterface: '', interfaceNamePrefix: ''}": "10.7.0.0/16,fd00:7::/56 ClusterCIDR",
		"detectLocalMode: NodeCIDR": "NodeCIDR",
		"clusterCIDR: 10.7.0.0/16\ndetectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}": "10.7.0.0/16 BridgeInterface cni0",
		"detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}":                   "InterfaceNamePrefix cali",
	} {
		put(config)
		c.wantPods("", want, "taken from the key config.conf of the ConfigMap kube-system/kube-proxy.")
	}
}

// podsOfValues: who says anything of them has said all.
func (c *cluster) podsOfValues() {
	const note = "clusterCIDR and detectLocalMode are as the values say."
	c.putConfigMap(namespace, "kube-proxy", map[string]string{
		"config.conf": "clusterCIDR: 10.7.0.0/16\ndetectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
	})
	for yaml, want := range map[string]string{
		"kubeProxyConfig: {clusterCIDR: 10.8.0.0/16}":    "10.8.0.0/16",
		"kubeProxyConfig: {clusterCIDR: ''}":             "",
		"kubeProxyConfig: {detectLocalMode: NodeCIDR}":   "NodeCIDR",
		"extraArgs: [--cluster-cidr=10.8.0.0/16]":        "",
		"extraArgs: [--detect-local-mode=NodeCIDR]":      "",
		"existingKubeProxyConfigMap: {name: kube-proxy}": "",
	} {
		c.wantPods(yaml, want, note)
	}
	c.wantPods("kubeProxyConfig: {masqueradeAll: true}", "10.7.0.0/16 BridgeInterface cni0", "kube-system/kube-proxy.")
}

// keepsPods: an upgrade keeps what was found when its source is gone or broken, follows it when
// it changes, and forgets it when the values say otherwise.
func (c *cluster) keepsPods() {
	upgraded := func(yaml, want string) {
		c.t.Helper()
		c.helm.must("upgrade", "--install", release, chartDir(c.t), values(c.t, onNode+yaml))
		config, err := c.client.CoreV1().ConfigMaps(namespace).Get(c.t.Context(), release, metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		if got := podsOf(c.t, config); got != want {
			c.t.Errorf("after an upgrade with %q the pods are %q, want %q", yaml, got, want)
		}
	}
	const bridge = "10.7.0.0/16 BridgeInterface cni0"
	upgraded("", bridge)
	sum := c.daemonSet().Spec.Template.Annotations["checksum/config"]
	c.putConfigMap(namespace, "kube-proxy", map[string]string{"config.conf": "no: {yaml"})
	upgraded("", bridge)
	c.deleteConfigMap(namespace, "kube-proxy")
	upgraded("", bridge)
	upgraded("image: {tag: v2}", bridge)
	if got := c.daemonSet().Spec.Template.Annotations["checksum/config"]; got != sum {
		c.t.Error("agents start again although their configuration is the same")
	}
	upgraded("kubeProxyConfig: {clusterCIDR: 10.8.0.0/16}", "10.8.0.0/16")
	upgraded("", "10.6.0.0/16 ClusterCIDR")
	c.putConfigMap(namespace, "kubeadm-config", map[string]string{"ClusterConfiguration": "networking: {podSubnet: '10.6.0.0/16,fd00:6::/56'}"})
	upgraded("", "10.6.0.0/16,fd00:6::/56 ClusterCIDR")
	if c.daemonSet().Spec.Template.Annotations["checksum/config"] == sum {
		c.t.Error("other CIDRs do not start the agents again")
	}
	c.helm.must("uninstall", release)
	c.removePodSources()
}

// removePodSources leaves the cluster as it was found.
func (c *cluster) removePodSources() {
	c.deleteConfigMap(namespace, "kubeadm-config")
	c.deleteConfigMap("kube-flannel", "kube-flannel-cfg")
	for _, path := range []string{
		"/api/v1/nodes/with", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/flannel",
		poolsPath + "/a4", poolsPath + "/b6", poolsPath + "/c-services", poolsPath + "/d-none",
	} {
		if err := c.request(http.MethodDelete, path, ""); err != nil {
			c.t.Fatal(err)
		}
	}
	c.wantPods("", "", "no clusterCIDR was found")
}

// TestPodCIDRs: the chart takes the CIDRs that the agent takes, and no others, or what stands in
// an object would keep agents from starting.
func TestPodCIDRs(t *testing.T) {
	cidrs := []string{
		"10.6.0.0/16", "0.0.0.0/0", "255.249.199.99/32", "10.6.1.2/9", "::/0", "fd00::/64", "FD00:6::1/128", "::1/119",
		"1:2:3:4:5:6:7:8/100", "1::8/99", "1:2:3:4:5:6:7::/10", "::2:3:4:5:6:7:8/9",
		"", "/", "10.6.0.0", "10.6.0.0/", "10.6.0.0/33", "10.6.0.0/016", "10.6.0.0/-1", "010.6.0.0/16", "256.6.0.0/16", "10.6.0/16", "10.6.0.0.0/16",
		"10.6.0.0./16", "10..0.0/16", "10.6.0.0/16/16", "10.6.0.0/16 10.7.0.0/16", "10.6.0.0/16\na: b", "fd00/64", "fd00::", "fd00::/129", "fd00::/01", "fd00::6::/64", ":::/64",
		":1::/64", "1::2:/64", "12345::/64", "g::/64", "1:2:3:4:5:6:7/64", "1:2:3:4:5:6:7:8:9/64", "1:2:3:4:5:6:7::8/64", "fe80::%eth0/64", "[fd00::]/64",
	}
	dir := t.TempDir()
	helpers, err := os.ReadFile(filepath.Join(chartDir(t), "templates", "_pods.tpl"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"Chart.yaml":            "apiVersion: v2\nname: cidrs\nversion: 0.0.0\n",
		"templates/_pods.tpl":   string(helpers),
		"templates/result.yaml": `taken: [{{ range .Values.cidrs }}{{ include "beeline.cidrs" (list .) | quote }},{{ end }}]`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.Marshal(map[string][]string{"cidrs": cidrs})
	if err != nil {
		t.Fatal(err)
	}
	var result struct{ Taken []string }
	if err := yaml.Unmarshal([]byte(newHelm(t, "").must("template", release, dir, values(t, string(b)))), &result); err != nil {
		t.Fatal(err)
	}
	if len(result.Taken) != len(cidrs) {
		t.Fatalf("%d results, want %d: %q", len(result.Taken), len(cidrs), result.Taken)
	}
	for i, cidr := range cidrs {
		want := ""
		if _, err := netip.ParsePrefix(cidr); err == nil {
			want = cidr
		}
		if result.Taken[i] != want {
			t.Errorf("of %q the chart takes %q, the agent %q", cidr, result.Taken[i], want)
		}
	}
}
