package main

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// addonConfig returns a ConfigMap of a fabric's manifest, of which each document is to
// be YAML. Without a name it is the one for the runtime.
func addonConfig(t *testing.T, fabric, name string) (config corev1.ConfigMap) {
	t.Helper()
	manifest, err := render(addons[fabric].manifest, addons[fabric].data())
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range strings.Split(manifest, "\n---\n") {
		var object corev1.ConfigMap
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Errorf("%s: %v\n%s", fabric, err, document)
		}
		_, runtime := object.Data["cni-conf.json"]
		if object.Kind == "ConfigMap" && (object.Name == name || name == "" && runtime) {
			config = object
		}
	}
	return config
}

// TestAddonManifests: an add-on brings a configuration for the runtime, in JSON, or it is
// kindnet or Cilium, whose programs write one themselves.
func TestAddonManifests(t *testing.T) {
	for fabric := range addons {
		plugins := addonConfig(t, fabric, "").Data["cni-conf.json"]
		if fabric != fabricKindnet && fabric != fabricCilium && !json.Valid([]byte(plugins)) {
			t.Errorf("%s: cni-conf.json is no JSON: %q", fabric, plugins)
		}
	}
}

// TestFlannelConfig: flanneld gets the networks of both IP families and the backend of
// the fabric.
func TestFlannelConfig(t *testing.T) {
	for fabric, backend := range map[string]string{fabricFlannel: "vxlan", fabricFlannelHostGW: "host-gw"} {
		config := addonConfig(t, fabric, "")
		var network struct {
			Network, IPv6Network string
			EnableIPv6           bool
			Backend              struct{ Type string }
		}
		if err := json.Unmarshal([]byte(config.Data["net-conf.json"]), &network); err != nil {
			t.Fatalf("%s: %v", fabric, err)
		}
		if got := network.Network + "," + network.IPv6Network; got != clusterCIDRs || !network.EnableIPv6 {
			t.Errorf("%s: networks %s, IPv6 %v, want %s", fabric, got, network.EnableIPv6, clusterCIDRs)
		}
		if network.Backend.Type != backend {
			t.Errorf("%s: backend %q, want %q", fabric, network.Backend.Type, backend)
		}
	}
}

// TestAddonNeedsProxy: an add-on reaches the API server by its Service.
func TestAddonNeedsProxy(t *testing.T) {
	for proxy, want := range map[string]bool{proxyBeeline: true, proxyKubeProxy: true, proxyNone: false} {
		s := settings{Proxy: proxy, Mode: "nftables", Fabric: fabricFlannel, Nodes: 2, Procs: 1}
		if err := s.validate(); (err == nil) != want {
			t.Errorf("--proxy=%s: %v", proxy, err)
		}
	}
}

// TestCalicoConfig: Calico gets the networks of both IP families, and the encapsulation and
// the dataplane of the fabric.
func TestCalicoConfig(t *testing.T) {
	networks := strings.Split(clusterCIDRs, ",")
	for fabric, want := range map[string][2]string{
		fabricCalico: {"Always", "Disabled"}, fabricCalicoSubnet: {"CrossSubnet", "Disabled"}, fabricCalicoNftables: {"Always", "Enabled"},
	} {
		env := addonConfig(t, fabric, "calico-env").Data
		for name, value := range map[string]string{
			"CALICO_IPV4POOL_CIDR": networks[0], "CALICO_IPV6POOL_CIDR": networks[1],
			"CALICO_IPV4POOL_VXLAN": want[0], "CALICO_IPV6POOL_VXLAN": want[0], "FELIX_NFTABLESMODE": want[1],
		} {
			if env[name] != value {
				t.Errorf("%s: %s is %q, want %q", fabric, name, env[name], value)
			}
		}
	}
}
