package setup

import (
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
		HostSocketsOnly: c.Beeline.SocketLB == config.SocketLBHost,
		LeaveNAT:        c.Beeline.SocketLB == config.SocketLBAuto,
		TC:              datapath.TCMode(c.Beeline.TCMode),
		XDP:             datapath.XDPMode(c.Beeline.XDP),
		NodeAddrs:       c.NodeAddrs,
		ClusterCIDRs:    c.PodRanges,
		NodePorts:       c.NodePorts.CIDRs,
		Internal:        c.Internal,
		MasqueradeAll:   c.MasqueradeAll,
		SNATPortMin:     c.SNATPortMin,
		SNATPortMax:     c.SNATPortMax,
		TunnelPort:      c.TunnelPort,
		TunnelClamp:     *c.Beeline.DSRClampMSS,
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
		Forwarding:        c.Forwarding,
		ForwardingRefused: forwardingRefused(c),
		NoTunnel:          c.TunnelPort == 0,
	}
}

// forwardingRefused returns why packets cannot go in a tunnel, or "".
func forwardingRefused(c *config.Settings) string {
	if c.MasqueradeAll {
		return config.MasqueradesAll
	}
	return ""
}
