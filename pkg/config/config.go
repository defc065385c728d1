package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
)

// KubeProxyKind is the kind of a KubeProxyConfiguration.
const KubeProxyKind = "KubeProxyConfiguration"

// Types of kube-proxy's configuration.
type (
	KubeProxyConfiguration = kubeproxyconfig.KubeProxyConfiguration
	localMode              = kubeproxyconfig.LocalMode
	proxyMode              = kubeproxyconfig.ProxyMode
)

// The values of detectLocalMode.
const (
	LocalModeClusterCIDR         localMode = "ClusterCIDR"
	LocalModeNodeCIDR            localMode = "NodeCIDR"
	LocalModeBridgeInterface     localMode = "BridgeInterface"
	LocalModeInterfaceNamePrefix localMode = "InterfaceNamePrefix"
)

// addressOff is the address of a server that is not wanted.
const addressOff = "0.0.0.0:0"

// Config is a configuration.
type Config struct {
	KubeProxy KubeProxyConfiguration
	Beeline   BeelineConfiguration

	origin origin
}

// Default returns the configuration without files and flags.
func Default() *Config {
	c := &Config{}
	c.setDefaults()
	c.setDependentDefaults()
	return c
}

// Configz returns the configuration as /configz shows it: by API group, in the form
// that JSON encodes as a configuration file would have it.
func (c *Config) Configz() map[string]any {
	return map[string]any{
		kubeproxyconfig.GroupName: c.KubeProxy,
		beelineGroup:              c.Beeline,
	}
}

// section holds the settings that kube-proxy has once for each of its modes. That of the mode in
// force counts.
type section struct {
	name                      string
	syncPeriod, minSyncPeriod *metav1.Duration
	masquerade                string // the section of masqueradeAll
	masqueradeAll             *bool
}

// section returns the section of the mode. IPVS has no masqueradeAll of its own; the
// one of iptables holds, as in kube-proxy.
func (c *Config) section() section {
	k := &c.KubeProxy
	switch k.Mode {
	case "nftables":
		return section{"nftables", &k.NFTables.SyncPeriod, &k.NFTables.MinSyncPeriod, "nftables", &k.NFTables.MasqueradeAll}
	case "ipvs":
		return section{"ipvs", &k.IPVS.SyncPeriod, &k.IPVS.MinSyncPeriod, "iptables", &k.IPTables.MasqueradeAll}
	}
	return section{"iptables", &k.IPTables.SyncPeriod, &k.IPTables.MinSyncPeriod, "iptables", &k.IPTables.MasqueradeAll}
}
