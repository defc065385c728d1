package main

import (
	"os"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/kubeproxy"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/socket"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tunnel"
	"github.com/beeline-lb/beeline/pkg/version"
)

// datapathOptions returns where the datapath goes.
func datapathOptions(c *config.Settings, cgroup string) datapath.Options {
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

// newProber returns what finds out which nodes accept tunnel traffic.
func newProber(c *config.Settings, m *bpfmap.Maps, secrets tunnel.Secrets) *tunnel.Prober {
	return tunnel.New(tunnel.Options{
		Secrets: secrets,
		Port:    c.TunnelPort,
		Nodes:   nodemap.New(m),
		Accepts: func(ifindex int) bool {
			serves, err := devicemap.New(m).Serves(ifindex)
			return err == nil && serves
		},
	})
}

// mayTunnel reports whether packets may go in a tunnel.
func mayTunnel(c *config.Settings) bool {
	asked := c.Forwarding.Tunnels() || slices.Contains(c.Beeline.AllowedAnnotations, model.AnnotationForwarding)
	return asked && c.TunnelPort != 0 && !c.MasqueradeAll
}

// setMarks lets packets of the tunnel have the marks of secrets. It reports whether they are
// sent with another one than before.
func setMarks(m *bpfmap.Maps, secrets tunnel.Secrets) bool {
	sent, accepted := secrets.Marks()
	return nodemap.New(m).SetMarks(sent, accepted...)
}

// canDestroySockets reports whether the kernel destroys UDP sockets, and logs why it does not.
func canDestroySockets() bool {
	err := socket.Supported()
	if err != nil {
		klog.ErrorS(err, "Connected UDP sockets keep endpoints that are gone")
	}
	return err == nil
}

// forwardingRefused returns why packets cannot go in a tunnel, or "".
func forwardingRefused(c *config.Settings) string {
	if c.MasqueradeAll {
		return config.MasqueradesAll
	}
	return ""
}

// describe returns the agent's record, which it stores beside the tables.
func describe(c *config.Settings, cgroup string, started time.Time, destroysSockets bool) statusmap.Agent {
	a := statusmap.Agent{
		PID:     os.Getpid(),
		Started: started,
		Version: version.String(),
		Node:    c.NodeName,
		Cgroup:  cgroup,

		SizedBy:      c.SizedBy,
		TunnelPort:   c.TunnelPort,
		KeepsSockets: !destroysSockets,
	}
	switch kubeconfig := c.KubeProxy.ClientConnection.Kubeconfig; {
	case c.Beeline.Manifests != "":
		a.Source = "manifests " + c.Beeline.Manifests
	case kubeconfig != "":
		a.Source = "kubeconfig " + kubeconfig
	case c.Beeline.Master != "":
		a.Source = "API server " + c.Beeline.Master
	default:
		a.Source = "API server of the pod"
	}
	return a
}
