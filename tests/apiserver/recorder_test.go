package apiserver

import (
	"maps"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/tests/wait"
)

// awaitTimeout covers a reflector that backs off while the server is away.
var awaitTimeout = wait.Limit

// recorder is a sink that keeps what it was told and how often.
type recorder struct {
	mu       sync.Mutex
	services map[model.Name]*model.Service
	slices   map[model.Name]*model.Slice
	node     *model.LocalNode
	nodes    map[string]*model.Node
	listed   bool // nodes are all
	cidrs    []netip.Prefix
	foreign  []netip.Addr
	// atSync is what was known when the source said that it was synced.
	atSync map[model.Name]*model.Service
	// puts and deletes count by the object's name, Services and slices together.
	puts, deletes map[model.Name]int
	early         []model.Name // deleted before synced
	changed       chan struct{}
}

func newRecorder() *recorder {
	return &recorder{
		services: make(map[model.Name]*model.Service),
		slices:   make(map[model.Name]*model.Slice),
		nodes:    make(map[string]*model.Node),
		puts:     make(map[model.Name]int),
		deletes:  make(map[model.Name]int),
		changed:  make(chan struct{}),
	}
}

func (r *recorder) Apply(u source.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range u.PutServices {
		r.services[s.Name] = s
		r.puts[s.Name]++
	}
	for _, s := range u.PutSlices {
		r.slices[s.Name] = s
		r.puts[s.Name]++
	}
	for _, n := range u.DeleteServices {
		delete(r.services, n)
		r.deleted(n)
	}
	for _, n := range u.DeleteSlices {
		delete(r.slices, n)
		r.deleted(n)
	}
	for _, p := range u.PutNodes {
		r.nodes[p.Name] = p
	}
	for _, name := range u.DeleteNodes {
		delete(r.nodes, name)
	}
	r.listed = r.listed || u.NodesListed
	if u.LocalNode != nil {
		r.node = u.LocalNode
	}
	if u.ServiceCIDRs != nil {
		r.cidrs, r.foreign = u.ServiceCIDRs, u.ForeignIPs
	}
	r.wake()
}

func (r *recorder) deleted(n model.Name) {
	r.deletes[n]++
	if r.atSync == nil {
		r.early = append(r.early, n)
	}
}

func (r *recorder) Synced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.atSync = maps.Clone(r.services)
	r.wake()
}

func (r *recorder) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// await waits until what has happened, as ok sees it. The recorder is locked
// while ok runs.
func (r *recorder) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(awaitTimeout)
	for {
		r.mu.Lock()
		done, changed := ok(), r.changed
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("not within %s: %s", awaitTimeout, what)
		}
	}
}

// counts returns how often the object n was put and deleted.
func (r *recorder) counts(n model.Name) (puts, deletes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.puts[n], r.deletes[n]
}

// totalDeletes returns how many deletions there have been.
func (r *recorder) totalDeletes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, d := range r.deletes {
		n += d
	}
	return n
}
