package main

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// addonConfig returns the ConfigMap of a fabric's manifest, of which each document is to
// be YAML.
func addonConfig(t *testing.T, fabric string) (config corev1.ConfigMap) {
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
		if object.Kind == "ConfigMap" {
			config = object
		}
	}
	return config
}

// TestAddonManifests: an add-on brings a configuration for the runtime, in JSON, or it is
// kindnet, which writes one itself.
func TestAddonManifests(t *testing.T) {
	for fabric := range addons {
		plugins := addonConfig(t, fabric).Data["cni-conf.json"]
		if fabric != fabricKindnet && !json.Valid([]byte(plugins)) {
			t.Errorf("%s: cni-conf.json is no JSON: %q", fabric, plugins)
		}
	}
}

// TestFlannelConfig: flanneld gets the networks of both IP families and the backend of
// the fabric.
func TestFlannelConfig(t *testing.T) {
	for fabric, backend := range map[string]string{fabricFlannel: "vxlan", fabricFlannelHostGW: "host-gw"} {
		config := addonConfig(t, fabric)
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
