package main

import (
	"bytes"
	"os"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/socket"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tunnel"
	"github.com/beeline-lb/beeline/pkg/version"
)

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

// setMarks lets packets of the tunnel have the marks of secrets. It reports what [nodemap.Table.SetMarks] does.
func setMarks(m *bpfmap.Maps, secrets tunnel.Secrets) (otherSent, changed bool) {
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

// noteConfig notes what the agent was started with, for "beeline verify". It reports whether the agent
// before was started with the same.
func noteConfig(status statusmap.Table, c *config.Settings) (same bool, err error) {
	noted := *c.Config
	noted.KubeProxy.HostnameOverride = c.NodeName // the command may run where the host has another name
	text, err := noted.Encode()
	if err != nil {
		return false, err
	}
	same = bytes.Equal(status.Config(), text)
	if err := status.SetConfig(text); err != nil {
		klog.ErrorS(err, "The command cannot compare the tables with the source")
	}
	return same, nil
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
