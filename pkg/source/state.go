package source

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
)

var _ Sink = (*State)(nil)

// State is a [Sink] that remembers what a source has told, for who looks at it now and then.
// Make one with [NewState]. Its methods may be called from several goroutines.
type State struct {
	mu       sync.Mutex
	services map[model.Name]*model.Service
	slices   map[model.Name]*model.Slice
	nodes    map[string]*model.Node
	listed   bool
	local    *model.LocalNode
	cidrs    []netip.Prefix
	foreign  []netip.Addr
	// changed is when a Service or a slice of it changed last, all what concerns every Service.
	changed     map[model.Name]time.Time
	all, latest time.Time // latest of anything

	once   sync.Once
	synced chan struct{}
}

// NewState returns a State that has been told nothing.
func NewState() *State {
	return &State{
		services: make(map[model.Name]*model.Service),
		slices:   make(map[model.Name]*model.Slice),
		nodes:    make(map[string]*model.Node),
		changed:  make(map[model.Name]time.Time),
		synced:   make(chan struct{}),
	}
}

// Apply remembers an update.
func (s *State) Apply(u Update) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.latest = now
	for _, svc := range u.PutServices {
		s.services[svc.Name], s.changed[svc.Name] = svc, now
	}
	for _, name := range u.DeleteServices {
		delete(s.services, name)
		s.changed[name] = now
	}
	for _, slice := range u.PutSlices {
		s.sliceChanged(slice.Name, now)
		s.slices[slice.Name] = slice
		s.sliceChanged(slice.Name, now)
	}
	for _, name := range u.DeleteSlices {
		s.sliceChanged(name, now)
		delete(s.slices, name)
	}
	for _, n := range u.PutNodes {
		s.nodes[n.Name] = n
	}
	for _, name := range u.DeleteNodes {
		delete(s.nodes, name)
	}
	s.listed = s.listed || u.NodesListed
	if u.LocalNode != nil {
		s.local = u.LocalNode
	}
	if u.ServiceCIDRs != nil {
		s.cidrs, s.foreign = u.ServiceCIDRs, u.ForeignIPs
	}
	if u.LocalNode != nil || u.ServiceCIDRs != nil || u.NodesListed || len(u.PutNodes)+len(u.DeleteNodes) > 0 {
		s.all = now
	}
}

// sliceChanged notes that the Service of a slice, should it be known, changes.
func (s *State) sliceChanged(name model.Name, now time.Time) {
	if slice := s.slices[name]; slice != nil {
		s.changed[slice.ServiceName()] = now
	}
}

// Synced says that all that exists has been told.
func (s *State) Synced() { s.once.Do(func() { close(s.synced) }) }

// Complete is closed when all that exists has been told.
func (s *State) Complete() <-chan struct{} { return s.synced }

// All returns all that was told, as one update for who was told nothing.
func (s *State) All() Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Update{
		PutServices:  slices.Collect(maps.Values(s.services)),
		PutSlices:    slices.Collect(maps.Values(s.slices)),
		PutNodes:     slices.Collect(maps.Values(s.nodes)),
		NodesListed:  s.listed,
		LocalNode:    s.local,
		ServiceCIDRs: s.cidrs,
		ForeignIPs:   s.foreign,
	}
}

// Changed returns when something last changed that a Service depends on: of the zero name, what
// concerns all Services alone.
func (s *State) Changed(service model.Name) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.changed[service]; at.After(s.all) {
		return at
	}
	return s.all
}

// Latest returns when something last changed.
func (s *State) Latest() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}
