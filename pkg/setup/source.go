// Package setup makes of the settings what the parts of an agent are started with: for the agent,
// and for who checks what it has done.
package setup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/file"
	"github.com/beeline-lb/beeline/pkg/source/kube"
)

// Services is where Services come from.
type Services struct {
	// Run tells the sink of them until the context ends. It is called once.
	Run    func(context.Context) error
	Record event.Recorder
	// FollowNodes makes it tell of all nodes of the cluster; nil for one that does anyway.
	FollowNodes func()
	// Errors returns what of manifests is wrong now; nil for a source without manifests.
	Errors func() []error
	// ClockAhead returns how far this machine's clock is ahead of the source's, and whether that is
	// known yet; nil for a source that has none of its own.
	ClockAhead func() (ahead time.Duration, known bool)
	// NodeMissing reports whether the cluster is known to have no Node of this one's name; nil where there is none.
	NodeMissing func() bool
}

// Source returns the source that the settings name, for the agent. eventsWait is told whether events
// about Services wait to be sent, as long as Run runs.
func Source(c *config.Settings, sink source.Sink, eventsWait func(bool)) (Services, error) {
	return newSource(c, sink, false, model.Name{}, eventsWait)
}

// Reader returns the same source for who looks at it beside the agent: it keeps nothing and tells
// nobody of events. An API server is asked for one Service alone, unless only is empty.
func Reader(c *config.Settings, sink source.Sink, only model.Name) (Services, error) {
	s, err := newSource(c, sink, true, only, nil)
	s.Record = event.Discard
	return s, err
}

func newSource(c *config.Settings, sink source.Sink, readOnly bool, only model.Name, eventsWait func(bool)) (Services, error) {
	if c.Beeline.Manifests != "" {
		return newFiles(c, sink, readOnly)
	}
	client := &c.KubeProxy.ClientConnection
	src, err := kube.New(kube.Options{
		Kubeconfig:         client.Kubeconfig,
		Master:             c.Beeline.Master,
		ContentType:        client.ContentType,
		AcceptContentTypes: client.AcceptContentTypes,
		QPS:                client.QPS,
		Burst:              int(client.Burst),
		NodeName:           c.NodeName,
		ServiceRanges:      c.ServiceRanges,
		Only:               only,
		Allowed:            c.Allowed,
		Sink:               sink,
		EventsWait:         eventsWait,
	})
	if err != nil {
		return Services{}, err
	}
	return Services{
		Run: src.Run, Record: src.Record, FollowNodes: src.FollowNodes,
		ClockAhead: src.ClockAhead, NodeMissing: src.NodeMissing,
	}, nil
}

// newFiles returns the source of a folder of manifests.
func newFiles(c *config.Settings, sink source.Sink, readOnly bool) (Services, error) {
	b := &c.Beeline
	if !readOnly {
		if err := os.MkdirAll(b.StateDir, 0o700); err != nil {
			return Services{}, fmt.Errorf("state folder: %w", err)
		}
	}
	src, err := file.New(file.Options{
		Dir:           b.Manifests,
		StateFile:     filepath.Join(b.StateDir, "manifests.json"),
		ReadOnly:      readOnly,
		NodeName:      c.NodeName,
		ServiceRanges: c.ServiceRanges,
		NodePortMin:   c.NodePortMin,
		NodePortMax:   c.NodePortMax,
		Allowed:       c.Allowed,
		Sink:          sink,
	})
	if err != nil {
		return Services{}, err
	}
	return Services{Run: src.Run, Record: event.Discard, Errors: src.Errors}, nil
}
