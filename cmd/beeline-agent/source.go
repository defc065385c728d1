package main

import (
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
)

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
