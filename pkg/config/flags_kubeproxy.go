package config

import (
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// addKubeProxy adds the flags that mean what kube-proxy's of the same name do.
func (f *flagSet) addKubeProxy(k *KubeProxyConfiguration) {
	f.addClient(k)
	f.addNode(k)
	f.addServers(k)
	f.addConntrack(k)
	f.addLogging(k)
	f.addUnused(k)
}

// addLogging adds the flags of every Kubernetes component's logging. Those that need a
// feature gate are not shown.
func (f *flagSet) addLogging(k *KubeProxyConfiguration) {
	logsapi.AddFlags(&k.Logging, f.FlagSet)
	for name, path := range map[string]string{
		"v":                         "verbosity",
		"vmodule":                   "vmodule",
		"logging-format":            "format",
		"log-flush-frequency":       "flushFrequency",
		"log-text-split-stream":     "options.text.splitStream",
		"log-text-info-buffer-size": "options.text.infoBufferSize",
		"log-json-split-stream":     "options.json.splitStream",
		"log-json-info-buffer-size": "options.json.infoBufferSize",
	} {
		f.fields[name] = "KubeProxyConfiguration.logging." + path
		if strings.HasPrefix(path, "options") {
			_ = f.MarkHidden(name)
		}
	}
}

// addUnused adds flags of kube-proxy that have no effect here, so that its command
// line can be taken over as it is. They are not shown.
func (f *flagSet) addUnused(k *KubeProxyConfiguration) {
	shown := make(map[string]bool)
	f.VisitAll(func(flag *pflag.Flag) { shown[flag.Name] = true })

	f.bindValue(text[proxyMode]{&k.Mode}, "proxy-mode", "KubeProxyConfiguration.mode", "")
	f.bindValue(cliflag.NewMapStringBool(&k.FeatureGates), "feature-gates", "KubeProxyConfiguration.featureGates", "")
	bind(f, f.StringVar, &k.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "KubeProxyConfiguration.showHiddenMetricsForVersion", "")
	bind(f, f.Int32Var, k.IPTables.MasqueradeBit, "iptables-masquerade-bit", "KubeProxyConfiguration.iptables.masqueradeBit", "")
	bind(f, f.BoolVar, k.IPTables.LocalhostNodePorts, "iptables-localhost-nodeports", "KubeProxyConfiguration.iptables.localhostNodePorts", "")
	bind(f, f.StringVar, &k.IPVS.Scheduler, "ipvs-scheduler", "KubeProxyConfiguration.ipvs.scheduler", "")
	bind(f, f.StringSliceVar, &k.IPVS.ExcludeCIDRs, "ipvs-exclude-cidrs", "KubeProxyConfiguration.ipvs.excludeCIDRs", "")
	bind(f, f.BoolVar, &k.IPVS.StrictARP, "ipvs-strict-arp", "KubeProxyConfiguration.ipvs.strictARP", "")
	bind(f, f.DurationVar, &k.IPVS.TCPTimeout.Duration, "ipvs-tcp-timeout", "KubeProxyConfiguration.ipvs.tcpTimeout", "")
	bind(f, f.DurationVar, &k.IPVS.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", "KubeProxyConfiguration.ipvs.tcpFinTimeout", "")
	bind(f, f.DurationVar, &k.IPVS.UDPTimeout.Duration, "ipvs-udp-timeout", "KubeProxyConfiguration.ipvs.udpTimeout", "")

	f.VisitAll(func(flag *pflag.Flag) { flag.Hidden = flag.Hidden || !shown[flag.Name] })
}

func (f *flagSet) addClient(k *KubeProxyConfiguration) {
	client := &k.ClientConnection
	bind(f, f.StringVar, &client.Kubeconfig, "kubeconfig", "KubeProxyConfiguration.clientConnection.kubeconfig",
		"kubeconfig file that leads to the API server")
	bind(f, f.StringVar, &client.ContentType, "kube-api-content-type", "KubeProxyConfiguration.clientConnection.contentType",
		"content type of requests to the API server")
	bind(f, f.Int32Var, &client.Burst, "kube-api-burst", "KubeProxyConfiguration.clientConnection.burst",
		"requests to the API server that may be made at once")
	bind(f, f.Float32Var, &client.QPS, "kube-api-qps", "KubeProxyConfiguration.clientConnection.qps",
		"requests to the API server per second")
	bind(f, f.DurationVar, &k.ConfigSyncPeriod.Duration, "config-sync-period", "KubeProxyConfiguration.configSyncPeriod",
		"without effect: changes are watched, nothing is refreshed by time")
}

func (f *flagSet) addNode(k *KubeProxyConfiguration) {
	bind(f, f.StringVar, &k.HostnameOverride, "hostname-override", "KubeProxyConfiguration.hostnameOverride",
		"name of this node (default the host name)")
	bind(f, f.StringVar, &k.BindAddress, "bind-address", "KubeProxyConfiguration.bindAddress",
		"this node's own IP; 0.0.0.0 and :: are the Node object's")
	bind(f, f.StringSliceVar, &k.NodePortAddresses, "nodeport-addresses", "KubeProxyConfiguration.nodePortAddresses",
		`CIDRs of the local addresses that NodePorts answer on, or "primary" for the node's own IP (default every local address)`)
	bind(f, f.StringVar, &k.ClusterCIDR, "cluster-cidr", "KubeProxyConfiguration.clusterCIDR",
		"CIDRs of pods, separated by commas: clients in them are inside the cluster")
	f.bindValue(text[localMode]{&k.DetectLocalMode}, "detect-local-mode", "KubeProxyConfiguration.detectLocalMode",
		"how clients inside the cluster are recognised: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")
	bind(f, f.StringVar, &k.DetectLocal.BridgeInterface, "pod-bridge-interface", "KubeProxyConfiguration.detectLocal.bridgeInterface",
		"bridge of the pods, for --detect-local-mode=BridgeInterface")
	bind(f, f.StringVar, &k.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "KubeProxyConfiguration.detectLocal.interfaceNamePrefix",
		"start of the names of pods' devices, for --detect-local-mode=InterfaceNamePrefix")
}

func (f *flagSet) addServers(k *KubeProxyConfiguration) {
	f.bindValue(address{&k.HealthzBindAddress}, "healthz-bind-address", "KubeProxyConfiguration.healthzBindAddress",
		"address and port for /healthz, /livez, /startupz and /wait-until-drained; port 0, or an empty flag, is off")
	f.bindValue(address{&k.MetricsBindAddress}, "metrics-bind-address", "KubeProxyConfiguration.metricsBindAddress",
		"address and port for /metrics; port 0, or an empty flag, is off")
	f.addDeprecatedPorts()
	bind(f, f.BoolVar, &k.BindAddressHardFail, "bind-address-hard-fail", "KubeProxyConfiguration.bindAddressHardFail",
		"end when an address cannot be listened on")
	bind(f, f.BoolVar, &k.EnableProfiling, "profiling", "KubeProxyConfiguration.enableProfiling",
		"serve /debug/pprof beside /metrics")
	bind(f, f.Int32Var, k.OOMScoreAdj, "oom-score-adj", "KubeProxyConfiguration.oomScoreAdj",
		"how likely the kernel is to end the agent when memory runs out, -1000 (never) to 1000")
}

// deprecatedPorts are kube-proxy's flags for the port alone of a server's address.
var deprecatedPorts = []struct {
	name, instead, path string
	port                int32 // the default
	field               func(*KubeProxyConfiguration) *string
}{
	{"healthz-port", "healthz-bind-address", "KubeProxyConfiguration.healthzBindAddress", healthzPort,
		func(k *KubeProxyConfiguration) *string { return &k.HealthzBindAddress }},
	{"metrics-port", "metrics-bind-address", "KubeProxyConfiguration.metricsBindAddress", metricsPort,
		func(k *KubeProxyConfiguration) *string { return &k.MetricsBindAddress }},
}

func (f *flagSet) addDeprecatedPorts() {
	for _, p := range deprecatedPorts {
		f.Int32(p.name, p.port, "port of --"+p.instead+" where that is an IP alone; 0 is off")
		_ = f.MarkDeprecated(p.name, "use --"+p.instead)
	}
}

// applyDeprecatedPorts sets those of the flags that were given, as kube-proxy does: 0 turns the server off,
// another port counts for an address without one. The default address has one.
func applyDeprecatedPorts(given *pflag.FlagSet, c *Config) {
	for _, p := range deprecatedPorts {
		if !given.Changed(p.name) {
			continue
		}
		port, _ := given.GetInt32(p.name)
		field := p.field(&c.KubeProxy)
		former := *field
		if *field = withPort(former, int(port)); port == 0 {
			*field = addressOff
		}
		if *field != former {
			c.origin.flags[p.path] = p.name
		}
	}
}

func (f *flagSet) addConntrack(k *KubeProxyConfiguration) {
	c := &k.Conntrack
	bind(f, f.Int32Var, c.MaxPerCore, "conntrack-max-per-core", "KubeProxyConfiguration.conntrack.maxPerCore",
		"connections that netfilter tracks per core; 0 leaves the limit as it is")
	bind(f, f.Int32Var, c.Min, "conntrack-min", "KubeProxyConfiguration.conntrack.min",
		"the least number of connections that netfilter tracks, unless --conntrack-max-per-core is 0")
	bind(f, f.BoolVar, &c.TCPBeLiberal, "conntrack-tcp-be-liberal", "KubeProxyConfiguration.conntrack.tcpBeLiberal",
		"let netfilter accept TCP packets that are out of the window")
	bind(f, f.DurationVar, &c.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", "KubeProxyConfiguration.conntrack.tcpEstablishedTimeout",
		"idle time after which a TCP connection of a client outside of the node expires, here and in netfilter; 0 is the kernel's default")
	bind(f, f.DurationVar, &c.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", "KubeProxyConfiguration.conntrack.tcpCloseWaitTimeout",
		"idle time after which a TCP connection of a client outside of the node that one side has closed expires")
	bind(f, f.DurationVar, &c.UDPTimeout.Duration, "conntrack-udp-timeout", "KubeProxyConfiguration.conntrack.udpTimeout",
		"idle time after which a UDP flow of a client outside of the node expires that is half-open: no packet of the client after a reply yet")
	bind(f, f.DurationVar, &c.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", "KubeProxyConfiguration.conntrack.udpStreamTimeout",
		"idle time after which a UDP flow of a client outside of the node with packets in both directions expires")
}
