package setup

import (
	"time"

	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/kubeproxy"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
)

// Datapath returns where the datapath goes, which serves the sockets of a cgroup.
func Datapath(c *config.Settings, cgroup string) datapath.Options {
	var mark uint32
	if c.AcceptForwarded {
		mark = kubeproxy.ForwardMark
	}
	return datapath.Options{
		ForwardMark:     mark,
		BPFFS:           c.Beeline.BPFFS,
		Cgroup:          cgroup,
		Sizes:           c.Sizes,
		Devices:         c.Beeline.Devices,
		PodDevices:      c.Beeline.PodDevices,
		LocalityIdle:    localityIdle(c),
		HostSocketsOnly: c.Beeline.SocketLB == config.SocketLBHost,
		LeaveNAT:        c.Beeline.SocketLB == config.SocketLBAuto,
		TC:              datapath.TCMode(c.Beeline.TCMode),
		XDP:             datapath.XDPMode(c.Beeline.XDP),
		NodeAddrs:       c.NodeAddrs,
		WithoutNode:     c.Beeline.Manifests != "",
		ClusterCIDRs:    c.PodRanges,
		NodePorts:       c.NodePorts.CIDRs,
		Internal:        c.Internal,
		MasqueradeAll:   c.MasqueradeAll,
		SNATPortMin:     c.SNATPortMin,
		SNATPortMax:     c.SNATPortMax,
		TunnelPort:      c.TunnelPort,
		TunnelClamp:     *c.Beeline.DSRClampMSS,
		TrafficSampling: c.Beeline.TrafficSampling,
		Outliers:        c.MayEject(),
	}
}

// Reconcile returns what the settings say of how Services become entries of the tables. Who is
// told of it is for the caller to set.
func Reconcile(c *config.Settings) reconcile.Options {
	return reconcile.Options{
		LocalNode:         model.LocalNode{Name: c.NodeName, Addrs: c.NodeAddrs},
		NodePortAddresses: c.NodePorts,
		MinSyncPeriod:     c.MinSyncPeriod,
		Algorithm:         c.Algorithm,
		LocalityRefused:   localityRefused(c),
		Outliers:          c.Outliers,
		Forwarding:        c.Forwarding,
		ForwardingRefused: forwardingRefused(c),
		NoTunnel:          c.TunnelPort == 0,
	}
}

// localityRefused returns why no Service can have an algorithm that localizes, or "". Its code is
// a fifth of what the kernel checks in a program, so it counts only where it is the default.
func localityRefused(c *config.Settings) string {
	if !c.Algorithm.Localizes() {
		return "needs lblc or lblcr as algorithm of the configuration, or as its ipvs.scheduler"
	}
	return ""
}

// localityIdle returns when a server of lblc or lblcr is forgotten, as in IPVS; 0 without them.
func localityIdle(c *config.Settings) time.Duration {
	if !c.Algorithm.Localizes() {
		return 0
	}
	return 24 * time.Hour
}

// forwardingRefused returns why packets cannot go in a tunnel, or "".
func forwardingRefused(c *config.Settings) string {
	if c.MasqueradeAll {
		return config.MasqueradesAll
	}
	return ""
}
