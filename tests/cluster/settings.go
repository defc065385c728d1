package main

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// The values of settings.Proxy.
const (
	proxyBeeline   = "beeline"
	proxyKubeProxy = "kube-proxy"
	proxyNone      = "none"
)

// The values of settings.Fabric: how packets of pods come to other nodes.
const (
	fabricRoutes         = "routes"
	fabricVXLAN          = "vxlan"
	fabricFlannel        = "flannel"
	fabricFlannelHostGW  = "flannel-host-gw"
	fabricKubeRouter     = "kube-router"
	fabricCilium         = "cilium"
	fabricKindnet        = "kindnet"
	fabricCalico         = "calico"
	fabricCalicoSubnet   = "calico-cross-subnet"
	fabricCalicoNftables = "calico-nftables"
)

// fabrics are all of them.
var fabrics = []string{
	fabricRoutes, fabricVXLAN, fabricFlannel, fabricFlannelHostGW, fabricKubeRouter, fabricCilium, fabricKindnet,
	fabricCalico, fabricCalicoSubnet, fabricCalicoNftables,
}

// enforcingFabrics are those whose add-on enforces NetworkPolicy.
var enforcingFabrics = []string{fabricKubeRouter, fabricCilium, fabricKindnet, fabricCalico, fabricCalicoSubnet, fabricCalicoNftables}

// policyKubeNetworkPolicies is the value of settings.Policy beside none.
const policyKubeNetworkPolicies = "kube-network-policies"

// settings say what cluster to run, and for what.
type settings struct {
	// Task is the command: up, e2e, ...
	Task string
	// Proxy serves the Services, in Mode if it is kube-proxy.
	Proxy, Mode string
	Fabric      string
	// Policy enforces NetworkPolicy, where the fabric does not.
	Policy string
	// Set changes values of Beeline's chart, as helm's flag of that name.
	Set string
	// Nodes is how many there are. They are in three zones by turns.
	Nodes int

	// Focus and Skip choose upstream's tests, Procs is how many run at a time.
	Focus, Skip string
	Procs       int
	// Again runs those tests only that failed or were skipped last time.
	Again bool
	// Duration is how long a soak disturbs the cluster, in an order that follows from Seed.
	Duration time.Duration
	Seed     uint64
	// Image is the name of Beeline's image and Archive the file that has it.
	Image, Archive string
	// Reports is the folder for results and logs that stay.
	Reports string

	// What the parent has made.
	Dir         string
	Groups      string
	Hierarchies []hierarchy
	Programs    programFolders
	Rootfs      string
	Chart       string
	Plugin      string
	Images      []string
	// MetalLB is the file with its manifest, for the task.
	MetalLB string
	// AddonVersion is that of an add-on which is built from a checkout.
	AddonVersion string
}

// twoNodes are the tasks that need two nodes, and the proxies that they are tried with.
var twoNodes = map[string][]string{
	policyTask:   {proxyBeeline, proxyKubeProxy},
	metalLBTask:  {proxyBeeline, proxyKubeProxy},
	powerCutTask: {proxyBeeline, proxyKubeProxy},
	soakTask:     {proxyBeeline},
}

func (s *settings) validate() error {
	var errs []error
	one := func(flag, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			errs = append(errs, fmt.Errorf("--%s=%s: want one of %q", flag, value, allowed))
		}
	}
	one("proxy", s.Proxy, proxyBeeline, proxyKubeProxy, proxyNone)
	one("mode", s.Mode, "nftables", "iptables")
	one("fabric", s.Fabric, fabrics...)
	if hasAddon(s.Fabric) && s.Proxy == proxyNone {
		errs = append(errs, fmt.Errorf("--fabric=%s: reaches the API server by its Service, which --proxy=none does not serve", s.Fabric))
	}
	one("policy", s.Policy, "", policyKubeNetworkPolicies)
	enforces := slices.Contains(enforcingFabrics, s.Fabric)
	if enforces && s.Policy != "" {
		errs = append(errs, fmt.Errorf("--policy=%s: %s enforces NetworkPolicy itself", s.Policy, s.Fabric))
	}
	if s.Task == policyTask && !enforces && s.Policy == "" {
		errs = append(errs, fmt.Errorf("nothing enforces NetworkPolicy: want --fabric of %q, or --policy=%s", enforcingFabrics, policyKubeNetworkPolicies))
	}
	if s.Nodes < 1 || s.Nodes > maxNodes {
		errs = append(errs, fmt.Errorf("--nodes=%d: want 1 to %d", s.Nodes, maxNodes))
	}
	if proxies, needs := twoNodes[s.Task]; needs && (s.Nodes < 2 || !slices.Contains(proxies, s.Proxy)) {
		errs = append(errs, fmt.Errorf("%s with --nodes=%d --proxy=%s: wants two nodes at least, and one of %q", s.Task, s.Nodes, s.Proxy, proxies))
	}
	if s.Procs < 1 {
		errs = append(errs, fmt.Errorf("--procs=%d: want at least 1", s.Procs))
	}
	return errors.Join(errs...)
}
