package inspect

import (
	"net/netip"
	"slices"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Sample is what all Services have counted at one time.
type Sample struct {
	time     time.Time
	services []Service
	flows    map[uint32]int                // active ones by service id
	backends map[uint32]int                // active ones by backend id
	intended map[uint32]map[uint32]float64 // the share of each backend id by service id
	nodes    map[uint32]string             // names by backend id, where they are known
	maps     []Map
	counters []Counter // of what is refused or dropped
	agent    Agent
	traffic  *statusmap.Traffics // nil: none is counted
	evicted  uint64
	pid      int // of the agent that counted evicted
}

// Top is what happened between two samples.
type Top struct {
	Time time.Time `json:"time"` // of the later one
	// Seconds lie between them; 0: there is only one, and no rate is known.
	Seconds  float64      `json:"seconds"`
	Services []TopService `json:"services"`
	// Sums are there instead of Services with [DetailNode].
	Sums *TopNode `json:"sums,omitempty"`
	// EvictedPerSecond are established connections that were evicted from the full flow table.
	EvictedPerSecond float64 `json:"evictedPerSecond"`
	// New is absent where nobody listened to new connections.
	New  *TopNew `json:"newConnections,omitempty"`
	Maps []Map   `json:"maps"` // those that can fill up
	// Reasons has all reasons for which connections or packets can be refused or dropped. Some
	// concern no Service, and some count packets: their sum is not that of the Services.
	Reasons []TopReason `json:"reasons"`
	Agent   Agent       `json:"agent"`
}

// TopReason is how often something was refused or dropped for one reason.
type TopReason struct {
	Reason    string  `json:"reason"`
	Effect    string  `json:"effect"`  // refused, dropped
	Meaning   string  `json:"meaning"` // in words
	PerSecond float64 `json:"perSecond"`
}

// Rates are of a Service, or of one of its ports.
type Rates struct {
	// ConnectionsPerSecond are those for which a backend was chosen.
	ConnectionsPerSecond float64 `json:"connectionsPerSecond"`
	// RefusedPerSecond were rejected or dropped.
	RefusedPerSecond float64 `json:"refusedPerSecond"`
	// Flows are the active connections of clients outside of this node's sockets.
	Flows int `json:"flows"`
	// Traffic is absent where none is counted (trafficSampling).
	Traffic *TrafficRates `json:"traffic,omitempty"`
}

// Add adds those of another.
func (r *Rates) Add(o Rates) {
	r.ConnectionsPerSecond += o.ConnectionsPerSecond
	r.RefusedPerSecond += o.RefusedPerSecond
	r.Flows += o.Flows
	r.Traffic = r.Traffic.plus(o.Traffic)
}

// TopService is a Service with the sums of its ports.
type TopService struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Rates
	// BackendCounts are there instead of ports with [DetailServices].
	*BackendCounts
	Ports []TopPort `json:"ports,omitzero"`
}

// BackendCounts is how many backends there are of all ports, and how many of them are on this node.
type BackendCounts struct {
	Backends       int `json:"backends"`
	BackendsOnNode int `json:"backendsOnNode"`
}

// TopPort is one family of a Service port.
type TopPort struct {
	PortName
	Algorithm string `json:"algorithm"`
	Rates
	// NoBackends says why the sets that frontends lead to have no backends, where some have none.
	NoBackends []string     `json:"noBackends,omitempty"`
	Backends   []TopBackend `json:"backends"`
}

// TopBackend compares the connections of a backend with what its algorithm intends.
type TopBackend struct {
	Address netip.AddrPort `json:"address"`
	OnNode  bool           `json:"onNode"`
	// Node is the name of its node, which is known where the Service uses direct server return.
	Node string `json:"node,omitempty"`
	// Connections are active ones: flows, and where the algorithm counts them, also those of
	// this node's sockets.
	Connections int `json:"connections"`
	// Share is its part of the port's, 0 to 1; absent when the port has none.
	Share *float64 `json:"share,omitempty"`
	// New are the new connections that were seen while somebody looked, of clients outside and of this
	// node's sockets; absent when none of the port was.
	New *int `json:"newConnections,omitempty"`
	// NewShare is its part of those of the port, 0 to 1; absent as New is.
	NewShare *float64 `json:"newShare,omitempty"`
	// Intended is the part that the algorithm would give it; absent where that depends on the
	// clients (lblc, lblcr, ewma).
	Intended *float64 `json:"intended,omitempty"`
	// Traffic is absent where none is counted (trafficSampling).
	Traffic *TrafficRates `json:"traffic,omitempty"`
}

// Sample reads what all Services have counted.
func (d *Datapath) Sample() (*Sample, error) {
	r, err := d.readServices()
	if err != nil {
		return nil, err
	}
	s := &Sample{
		time: time.Now(), flows: make(map[uint32]int), backends: make(map[uint32]int), intended: make(map[uint32]map[uint32]float64),
	}
	if s.services, err = d.services(r); err != nil {
		return nil, err
	}
	for i := range s.services {
		for j := range s.services[i].Ports {
			p := &s.services[i].Ports[j]
			s.intended[p.ID] = r.intended(p)
		}
	}
	for f, err := range flowmap.New(d.maps).Flows(bpf.Clock) {
		if err != nil {
			return nil, err
		}
		s.count(r, f)
	}
	if s.traffic, err = statusmap.New(d.maps).Traffic(); err != nil {
		return nil, err
	}
	return s, d.sampleNode(r, s)
}

// sampleNode reads what concerns no single Service.
func (d *Datapath) sampleNode(r *reading, s *Sample) error {
	maps, err := d.fill(r)
	if err != nil {
		return err
	}
	s.maps = slices.DeleteFunc(maps, func(m Map) bool { return m.Size == 0 })
	counters, err := d.counters()
	if err != nil {
		return err
	}
	s.counters = slices.DeleteFunc(counters, func(c Counter) bool {
		return c.Effect != string(statusmap.Refused) && c.Effect != string(statusmap.Dropped)
	})
	if s.nodes, err = d.nodesOf(r.Backends); err != nil {
		return err
	}
	if s.agent, err = d.agent(); err != nil {
		return err
	}
	told := statusmap.New(d.maps).Agent()
	s.evicted, s.pid = told.Evicted.Established, told.PID
	return nil
}

// nodesOf returns the names of backends' nodes by the backend's id, where they are known.
func (d *Datapath) nodesOf(backends map[uint32]tables.Backend) (map[uint32]string, error) {
	known, err := d.nodes()
	if err != nil {
		return nil, err
	}
	names := make(map[uint16]string, len(known))
	for _, n := range known {
		names[n.ID] = n.Name
	}
	nodes := make(map[uint32]string)
	for id, b := range backends {
		if name := names[b.Node]; name != "" {
			nodes[id] = name
		}
	}
	return nodes, nil
}

// count counts a flow for its Service, that of one whose backend has gone, too.
func (s *Sample) count(r *reading, f *flowmap.Flow) {
	if !f.State.Active() {
		return
	}
	if f.Known {
		s.flows[f.Service]++
		s.backends[f.BackendID]++
	} else if port := r.servedAt(f.ServiceAddr, f.Protocol); port.Service != "" {
		s.flows[port.ID]++
	}
}

// intended returns the share of connections that the algorithm would give each backend of a port;
// nil where that depends on the clients.
func (r *reading) intended(p *Port) map[uint32]float64 {
	service := r.Services[p.ID]
	if service.Algorithm.Localizes() || service.Algorithm == model.EWMA || p.Cluster.Used == p.Local.Used {
		return nil
	}
	set := service.Cluster
	if p.Local.Used {
		set = service.Local
	}
	weight := evenly // slots say it all
	if service.Algorithm.Counts() && !service.Algorithm.Weighs() && service.Algorithm != model.LeastConn {
		weight = func(backend uint32) float64 { return float64(r.Backends[backend].Weight) }
	}
	return shares(r.Slots(set), weight)
}

// shares returns the share that each backend of some slots has, by the weight of each slot.
func shares(slots []uint32, weight func(backend uint32) float64) map[uint32]float64 {
	total := 0.0
	for _, backend := range slots {
		total += weight(backend)
	}
	share := make(map[uint32]float64)
	for _, backend := range slots {
		if total > 0 {
			share[backend] += weight(backend) / total
		}
	}
	return share
}

// evenly gives each slot the same weight.
func evenly(uint32) float64 { return 1 }

// Since returns what has happened since an earlier sample; without one no rate is known.
func (s *Sample) Since(earlier *Sample) *Top {
	t := &Top{Time: s.time, Services: make([]TopService, 0, len(s.services)), Maps: s.maps, Agent: s.agent}
	if earlier == nil {
		earlier = &Sample{time: s.time}
	}
	t.Seconds = s.time.Sub(earlier.time).Seconds()
	if s.pid == earlier.pid {
		t.EvictedPerSecond = rate(s.evicted, earlier.evicted, t.Seconds)
	}
	t.Reasons = s.reasonsSince(earlier, t.Seconds)
	before := earlier.counts()
	for i := range s.services {
		service := TopService{Namespace: s.services[i].Namespace, Name: s.services[i].Name, Ports: []TopPort{}}
		for j := range s.services[i].Ports {
			p := &s.services[i].Ports[j]
			port := s.port(p)
			port.ConnectionsPerSecond = rate(p.Connections, before[p.PortName].Connections, t.Seconds)
			port.RefusedPerSecond = rate(p.Refused, before[p.PortName].Refused, t.Seconds)
			s.addTraffic(&port, p, earlier.traffic, t.Seconds)
			service.Add(port.Rates)
			service.Ports = append(service.Ports, port)
		}
		t.Services = append(t.Services, service)
	}
	return t
}

// addTraffic fills in the traffic of a port and of its backends, where it is counted.
func (s *Sample) addTraffic(port *TopPort, p *Port, before *statusmap.Traffics, seconds float64) {
	if s.traffic == nil {
		return
	}
	if before == nil {
		before, seconds = &statusmap.Traffics{}, 0
	}
	port.Traffic = trafficRates(s.traffic.Services[p.ID], before.Services[p.ID], seconds)
	for i := range p.Backends {
		id := p.Backends[i].ID
		port.Backends[i].Traffic = trafficRates(s.traffic.Backends[id], before.Backends[id], seconds)
	}
}

// counts returns what each Service port has counted.
func (s *Sample) counts() map[PortName]Counts {
	counts := make(map[PortName]Counts)
	for i := range s.services {
		for j := range s.services[i].Ports {
			p := &s.services[i].Ports[j]
			counts[p.PortName] = p.Counts
		}
	}
	return counts
}

// reasonsSince returns how often something was refused or dropped since an earlier sample.
func (s *Sample) reasonsSince(earlier *Sample, seconds float64) []TopReason {
	before := make(map[string]uint64)
	for _, c := range earlier.counters {
		before[c.Reason] = c.Count
	}
	list := make([]TopReason, 0, len(s.counters))
	for _, c := range s.counters {
		list = append(list, TopReason{c.Reason, c.Effect, refusalReasons[c.Reason], rate(c.Count, before[c.Reason], seconds)})
	}
	return list
}

// rate returns how fast a counter has grown. One that is less than before began anew.
func rate(now, before uint64, seconds float64) float64 {
	if now < before {
		before = 0
	}
	if seconds <= 0 {
		return 0
	}
	return float64(now-before) / seconds
}

// port returns a port with its backends, without rates.
func (s *Sample) port(p *Port) TopPort {
	port := TopPort{
		PortName: p.PortName, Algorithm: p.Algorithm, Backends: make([]TopBackend, 0, len(p.Backends)),
		Rates: Rates{Flows: s.flows[p.ID]}, NoBackends: p.noBackends(),
	}
	intended := s.intended[p.ID]
	for i := range p.Backends {
		b := TopBackend{
			Address: netip.AddrPortFrom(p.Backends[i].Address, p.Backends[i].TargetPort), OnNode: p.Backends[i].OnNode,
			Node: s.nodes[p.Backends[i].ID], Connections: s.backends[p.Backends[i].ID],
		}
		if active := p.Backends[i].Active; active != nil {
			b.Connections += int(active.Sockets)
		}
		if intended != nil {
			share := intended[p.Backends[i].ID]
			b.Intended = &share
		}
		port.Backends = append(port.Backends, b)
	}
	port.share()
	return port
}

// noBackends says why the sets that frontends lead to have no backends, where some have none.
func (p *Port) noBackends() (list []string) {
	for name, set := range map[string]Set{setCluster: p.Cluster, setLocal: p.Local} {
		if set.Used && set.Reason != "" {
			list = append(list, name+": "+set.Reason)
		}
	}
	slices.Sort(list)
	return list
}

// share says which part of the port's connections, and of its new ones, each backend has.
func (p *TopPort) share() {
	all, allNew := 0, 0
	for i := range p.Backends {
		all += p.Backends[i].Connections
		allNew += p.Backends[i].NewCount()
	}
	for i := range p.Backends {
		b := &p.Backends[i]
		b.Share, b.NewShare = partOf(b.Connections, all), partOf(b.NewCount(), allNew)
	}
}

// NewCount is how many new connections were seen, 0 also where New is absent.
func (b *TopBackend) NewCount() int {
	if b.New == nil {
		return 0
	}
	return *b.New
}

// partOf returns n as a part of all; nil when there are none.
func partOf(n, all int) *float64 {
	if all == 0 {
		return nil
	}
	part := float64(n) / float64(all)
	return &part
}
