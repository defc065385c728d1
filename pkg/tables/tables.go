package tables

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
)

// Tables brings a [Store] to the desired state. It remembers the entries that reached the
// store, so a call writes only differences, and one that failed can be repeated.
// It is not safe for concurrent use.
type Tables struct {
	store Store

	services ids
	backends ids
	slots    runs

	ports     map[ServicePortName]*servicePort
	owned     map[model.Name]*service
	frontends map[FrontendKey]*frontend
	waiting   map[FrontendKey][]claim // to frontends that other Services have or are to have, in order
	nodeAddrs map[netip.Addr]NodeAddr
	cidrs     map[netip.Prefix]struct{}
	foreign   map[netip.Addr]struct{}
	nodes     nodes
	ranges    uint32 // source ranges of all Service ports

	room room

	retired Retired
	orphans orphans
}

// service are the entries of one Service in the tables.
type service struct {
	ports     []ServicePortName
	frontends map[FrontendKey]struct{}
	// claims are the frontends it wants that another Service has or is to have.
	claims map[FrontendKey]claim
	// tunnelNodes are the nodes with endpoints to which packets are tunneled, sorted.
	tunnelNodes []string
}

type frontend struct {
	Frontend
	owner model.Name
}

// Retired are ids and slots that no table refers to any more, but a program that
// is still running may have read.
type Retired struct {
	services []uint32
	backends []uint32
	slots    []run
	nodes    []uint16
}

// Empty reports whether there is nothing to wait for.
func (r Retired) Empty() bool {
	return len(r.services) == 0 && len(r.backends) == 0 && len(r.slots) == 0 && len(r.nodes) == 0
}

// New returns the tables over an empty store.
func New(store Store) *Tables {
	limits := store.Limits()
	t := &Tables{
		store:     store,
		services:  ids{limit: limits.Services.Size},
		backends:  ids{limit: limits.Backends.Size},
		slots:     newRuns(limits.Slots.Size),
		ports:     make(map[ServicePortName]*servicePort),
		owned:     make(map[model.Name]*service),
		frontends: make(map[FrontendKey]*frontend),
		waiting:   make(map[FrontendKey][]claim),
		nodeAddrs: make(map[netip.Addr]NodeAddr),
		cidrs:     make(map[netip.Prefix]struct{}),
		foreign:   make(map[netip.Addr]struct{}),
		nodes:     newNodes(limits.Nodes),
		room:      newRoom(&limits),
	}
	t.SetBounds(Bounds{})
	return t
}

// ClashError is an address and port that two Services want.
type ClashError struct {
	Key   FrontendKey
	Kind  FrontendKind
	Owner model.Name // has it, or is to have it next
}

// Error names the address and the Service that has it.
func (e *ClashError) Error() string {
	return fmt.Sprintf("%s %s belongs to service %s already", e.Kind, e.Key, e.Owner)
}

// Apply brings one Service's entries to the desired state. One entry that fails
// does not hold up the others. The error joins a [ClashError] for each frontend
// that another Service has, or is to have next, and a [FullError] for each table without room; calling
// Apply again retries only the missing entries.
//
// The returned names are other Services that now may get, or have just lost, a
// frontend: they are to be applied again.
func (t *Tables) Apply(desired Desired) (affected []model.Name, err error) {
	svc := t.service(desired.Name)
	t.nodes.use(svc, &desired)
	var errs []error
	wanted := make(map[ServicePortName]bool, len(desired.Ports))
	for i := range desired.Ports {
		want := &desired.Ports[i]
		name := want.Name.ServicePortName()
		wanted[name] = true
		fresh := t.ports[name] == nil
		sp, err := t.port(want.Name)
		if err != nil {
			errs = append(errs, fmt.Errorf("port %s: %w", name.Port, err))
			continue
		}
		if fresh {
			svc.ports = append(svc.ports, name)
		}
		err = t.applyPort(sp, want)
		if errors.Is(err, ErrFull) && !t.retired.Empty() {
			err = t.applyPort(sp, want) // in the room that it has given up itself
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("port %s: %w", name.Port, err))
		}
	}
	affected, err = t.applyFrontends(svc, &desired)
	errs = append(errs, err, t.narrowRanges(&desired), t.removePorts(svc, wanted))
	if len(svc.ports) == 0 && len(svc.frontends) == 0 && len(svc.claims) == 0 {
		delete(t.owned, desired.Name)
	}
	return affected, errors.Join(errs...)
}

// Reserve makes room for what the Services have a share of when all of them are about to
// be applied: of slots, for the usual one set of each port, and for some more of rings and
// weights, which are needed while these are replaced.
func (t *Tables) Reserve() error {
	ports, backends := t.room.sum(ofPorts), t.room.sum(ofBackends)
	shared := t.room.shared()
	slots := 2*backends + shared + shared/16
	return t.store.Reserve(uint32(ports), uint32(backends), uint32(min(slots, math.MaxUint32)))
}

func (t *Tables) service(name model.Name) *service {
	svc := t.owned[name]
	if svc == nil {
		svc = &service{
			frontends: make(map[FrontendKey]struct{}),
			claims:    make(map[FrontendKey]claim),
		}
		t.owned[name] = svc
	}
	return svc
}

// Remove takes out everything of a Service. It can be repeated after an error.
func (t *Tables) Remove(name model.Name) (affected []model.Name, err error) {
	if t.owned[name] == nil {
		return nil, nil
	}
	return t.Apply(Desired{Name: name})
}

// Prune removes the Services that wanted does not name, and half-written entries of a
// former agent. To be called once every Service has been applied.
func (t *Tables) Prune(wanted func(model.Name) bool) (affected []model.Name, err error) {
	errs := []error{t.clearOrphans()}
	for _, name := range slices.SortedFunc(maps.Keys(t.owned), model.Name.Compare) {
		if wanted(name) {
			continue
		}
		names, err := t.Remove(name)
		affected = append(affected, names...)
		if err != nil {
			errs = append(errs, fmt.Errorf("service %s: %w", name, err))
		}
	}
	return affected, errors.Join(errs...)
}

// allocate takes a free id; it waits for retired ones when there is none.
func (t *Tables) allocate(from *ids, limit Limit) (uint32, error) {
	if id, ok := from.get(); ok {
		return id, nil
	}
	if err := t.reclaim(); err != nil {
		return 0, err
	}
	if id, ok := from.get(); ok {
		return id, nil
	}
	return 0, limit.Full()
}

// reclaim waits until everything retired is free.
func (t *Tables) reclaim() error {
	retired := t.Retire()
	if retired.Empty() {
		return nil
	}
	if err := t.store.Barrier(); err != nil {
		t.retired = retired
		return err
	}
	t.Release(retired)
	return nil
}

// Retire hands over what is waiting for a barrier. The caller calls
// [Store.Barrier], then [Tables.Release].
func (t *Tables) Retire() Retired {
	retired := t.retired
	t.retired = Retired{}
	return retired
}

// Release makes ids and slots free after a barrier.
func (t *Tables) Release(r Retired) {
	for _, id := range r.services {
		t.services.put(id)
	}
	for _, id := range r.backends {
		t.backends.put(id)
	}
	for _, s := range r.slots {
		t.slots.put(s)
	}
	t.nodes.free = append(t.nodes.free, r.nodes...)
}

// removePorts takes out the Service's ports that are not wanted, and to which no frontend leads.
func (t *Tables) removePorts(svc *service, wanted map[ServicePortName]bool) error {
	if !slices.ContainsFunc(svc.ports, func(name ServicePortName) bool { return !wanted[name] }) {
		return nil
	}
	led := make(map[uint32]bool)
	for key := range svc.frontends {
		led[t.frontends[key].Service] = true
	}
	var errs []error
	svc.ports = slices.DeleteFunc(svc.ports, func(name ServicePortName) bool {
		if wanted[name] || led[t.ports[name].id] {
			return false
		}
		err := t.removePort(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("port %s: %w", name.Port, err))
		}
		return err == nil
	})
	return errors.Join(errs...)
}

// sortedKeys returns the keys of a set of frontends in a fixed order.
func sortedKeys(set map[FrontendKey]struct{}) []FrontendKey {
	keys := make([]FrontendKey, 0, len(set))
	for k := range set {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, FrontendKey.Compare)
	return keys
}

// Fill is how full a table is.
type Fill struct {
	Limit
	Used uint32 // slots are counted in the blocks that hold them
}

// Usage returns how full the tables are that can run out.
func (t *Tables) Usage() []Fill {
	limits := t.store.Limits()
	return []Fill{
		{limits.Services, t.services.inUse},
		{limits.Backends, t.backends.inUse},
		{limits.Slots, t.slots.inUse},
		{limits.Frontends, uint32(len(t.frontends))},
		{limits.SourceRanges, t.ranges},
	}
}

// precedence returns a number: a frontend takes its address and port from those of lower ones. The
// cluster assigns a ClusterIP, and with its load balancer writes the status that has the load-balancer
// IPs; external IPs are chosen by the author of the Service.
func precedence(f Frontend) int {
	switch {
	case ofCluster(f):
		return 2
	case f.Kind == FrontendLoadBalancer:
		return 1
	}
	return 0
}

func ofCluster(f Frontend) bool {
	return f.Kind == FrontendClusterIP || f.Flags&RefuseOthers != 0
}
