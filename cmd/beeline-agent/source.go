package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/file"
	"github.com/beeline-lb/beeline/pkg/source/kube"
)

// services is where Services come from.
type services struct {
	run    part
	record event.Recorder
	// followNodes makes it tell of all nodes of the cluster; nil for one that does anyway.
	followNodes func()
}

// newSource returns the source that the settings name.
func newSource(c *config.Settings, sink source.Sink) (services, error) {
	b := &c.Beeline
	if b.Manifests == "" {
		client := &c.KubeProxy.ClientConnection
		src, err := kube.New(kube.Options{
			Kubeconfig:         client.Kubeconfig,
			Master:             b.Master,
			ContentType:        client.ContentType,
			AcceptContentTypes: client.AcceptContentTypes,
			QPS:                client.QPS,
			Burst:              int(client.Burst),
			NodeName:           c.NodeName,
			ServiceRanges:      c.ServiceRanges,
			Annotations:        c.Annotations,
			Sink:               sink,
		})
		if err != nil {
			return services{}, err
		}
		return services{run: src.Run, record: src.Record, followNodes: src.FollowNodes}, nil
	}
	if err := os.MkdirAll(b.StateDir, 0o700); err != nil {
		return services{}, fmt.Errorf("state folder: %w", err)
	}
	src, err := file.New(file.Options{
		Dir:           b.Manifests,
		StateFile:     filepath.Join(b.StateDir, "manifests.json"),
		ServiceRanges: c.ServiceRanges,
		NodePortMin:   c.NodePortMin,
		NodePortMax:   c.NodePortMax,
		Annotations:   c.Annotations,
		Sink:          sink,
	})
	if err != nil {
		return services{}, err
	}
	return services{run: src.Run, record: event.Discard}, nil
}

// nodeSink is a sink that also hands on the Node object.
type nodeSink struct {
	source.Sink
	given   []netip.Addr // go before the Node's
	setNode func(*model.LocalNode)
	// nil: they do not matter
	setAddrs     func([]netip.Addr)
	setPodRanges func([]netip.Prefix)
}

// Apply hands the update on.
func (s *nodeSink) Apply(u source.Update) {
	if u.LocalNodeGone {
		s.setNode(nil)
	}
	if u.LocalNode != nil {
		s.setNode(u.LocalNode)
		if s.setAddrs != nil {
			s.setAddrs(model.PreferAddrs(s.given, u.LocalNode.Addrs))
		}
		if s.setPodRanges != nil {
			s.setPodRanges(u.LocalNode.PodRanges)
		}
	}
	s.Sink.Apply(u)
}
