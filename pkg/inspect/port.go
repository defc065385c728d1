package inspect

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// PortName identifies one family of one Service port. Only ID is set for an entry
// that belongs to no Service, as there may be for an instant while the agent
// writes.
type PortName struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	PortName  string `json:"portName,omitempty"`
	Port      uint16 `json:"port"`
	Protocol  string `json:"protocol"`
	Family    string `json:"family"` // IPv4, IPv6
	// ID is the index in bl_service.
	ID uint32 `json:"serviceID"`
}

// String returns "namespace/service:port", without the port when it has no name,
// and "-" when only the id is known.
func (p PortName) String() string {
	switch {
	case p.Service == "":
		return "-"
	case p.PortName == "":
		return p.Namespace + "/" + p.Service
	}
	return p.Namespace + "/" + p.Service + ":" + p.PortName
}

// key is the same on every node: the id is left out.
func (p PortName) key() PortName {
	p.ID = 0
	return p
}

func (p PortName) compare(o PortName) int {
	return cmp.Or(cmp.Compare(p.Namespace, o.Namespace), cmp.Compare(p.Service, o.Service),
		cmp.Compare(p.Port, o.Port), cmp.Compare(p.Protocol, o.Protocol),
		cmp.Compare(p.PortName, o.PortName), cmp.Compare(p.Family, o.Family), cmp.Compare(p.ID, o.ID))
}

// Port is how one family of one Service port is served.
type Port struct {
	PortName
	NodePort uint16 `json:"nodePort,omitempty"`
	// Algorithm is the name of a [model.Algorithm].
	Algorithm string `json:"algorithm"`
	// Bound is how many slots a set may take where the tables have no room for all that its
	// ring or its weights ask for; 1 is one for each endpoint. 0: there is room.
	Bound uint32 `json:"bound,omitempty"`
	// Cut says what the Service goes without where the tables have no room for all that it asks
	// for: a sentence for each table.
	Cut []string `json:"cut,omitempty"`
	// Forwarding is how packets reach endpoints on other nodes: snat or dsr.
	Forwarding string     `json:"forwarding"`
	Frontends  []Frontend `json:"frontends"`
	// Cluster and Local are the sets for traffic under the policy of that name.
	Cluster Set `json:"cluster"`
	Local   Set `json:"local"`
	// Backends are those of both sets.
	Backends []Backend `json:"backends"`
	Counts
}

// Counts are connections since the datapath was set up.
type Counts struct {
	// Connections for which a backend was chosen; for unconnected UDP, peers of
	// sockets.
	Connections uint64 `json:"connections"`
	// Refused were rejected or dropped.
	Refused uint64 `json:"refused"`
	// Dropped are those of them of which the client is told nothing.
	Dropped uint64 `json:"dropped"`
}

func (c *Counts) add(o Counts) {
	c.Connections += o.Connections
	c.Refused += o.Refused
	c.Dropped += o.Dropped
}

// Set is the set of endpoints for traffic under one policy.
type Set struct {
	Kind string `json:"kind"` // backends, reject, drop
	// Reason says in words why there are no backends.
	Reason   string   `json:"reason,omitempty"`
	Backends []uint32 `json:"backends"` // ids
	// Slots is how many slots the backends share.
	Slots uint32 `json:"slots"`
	// Used says that a frontend leads to the set.
	Used bool `json:"used"`
}

// Backend is an endpoint of one Service port. A pod behind two Services has two.
type Backend struct {
	ID          uint32     `json:"id"` // index in bl_backend
	Address     netip.Addr `json:"address"`
	TargetPort  uint16     `json:"targetPort"`
	Ready       bool       `json:"ready"`
	Serving     bool       `json:"serving"`
	Terminating bool       `json:"terminating"`
	OnNode      bool       `json:"onNode"` // on this node
	Sets        []string   `json:"sets"`   // cluster, local; in none it keeps what goes to it
	// Weight is the share of new connections beside that of others; 0 gets none.
	Weight uint16 `json:"weight"`
	// Generation tells users of the same id apart by its lower half, and the times apart that one has
	// come back to a set.
	Generation uint32 `json:"generation"`
	// Active are its active connections; nil where the algorithm does not count them.
	Active *Active `json:"active,omitempty"`
	// Outlier is what outlier detection knows of it; nil without.
	Outlier *Outlier `json:"outlier,omitempty"`
}

// Outlier is whether connections to a backend fail.
type Outlier struct {
	Failures uint32 `json:"failures"` // connections in a row
	// Ejected says that it gets no new connections, for EjectedSeconds more.
	Ejected        bool  `json:"ejected"`
	EjectedSeconds int64 `json:"ejectedSeconds"`
	// OnTrial says that its time is over, and one new connection decides whether it is let in.
	OnTrial bool `json:"onTrial"`
	// Times is how often it has been ejected without having served well in between.
	Times uint32 `json:"times"`
}

// Active are the active connections that this node has to a backend.
type Active struct {
	// Sockets are those of this node that have connected to the Service and are open.
	Sockets uint32 `json:"sockets"`
	// Flows are those of packets that have begun and not closed.
	Flows uint32 `json:"flows"`
	// RTTMicroseconds is the round-trip time by which ewma goes; nil where it is not known.
	RTTMicroseconds *float64 `json:"rttMicroseconds,omitempty"`
}

// Frontend is an address that leads to a Service port.
type Frontend struct {
	Kind string `json:"kind"` // ClusterIP, NodePort, ExternalIP, LoadBalancer, Address
	// Address is the unspecified address for a NodePort: it stands for those of
	// the node.
	Address netip.Addr `json:"address"`
	// Port and Protocol are absent for the kind Address. With RefuseOthers it answers echo
	// requests and refuses the ports that the Service does not have.
	Port     uint16 `json:"port,omitempty"`
	Protocol string `json:"protocol,omitempty"`
	// Internal and External are the sets, cluster or local, that clients inside
	// and outside the cluster get.
	Internal string `json:"internal,omitempty"`
	External string `json:"external,omitempty"`
	// SourceRanges are the only clients let in. Empty lets in all unless
	// Restricted is set.
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	Restricted   bool           `json:"restricted,omitempty"`
	// RefuseOthers is set for the address of a ClusterIP.
	RefuseOthers bool `json:"refuseOthers,omitempty"`
}

// reading is one pass over the tables.
type reading struct {
	tables.Snapshot
	active func(id, generation uint32) (sockets, flows uint32)
	rtt    func(id, generation uint32, now time.Duration) time.Duration
	// outlier returns what outlier detection knows of a backend.
	outlier func(id, generation uint32) tables.Outlier
	now     time.Duration // as [tables.Outlier.Until]
	stats   []statusmap.ServiceStat
	ranges  map[uint32][]netip.Prefix
}

// readServices is read of what is about Services.
func (d *Datapath) readServices() (*reading, error) {
	if err := d.need(serviceTables...); err != nil {
		return nil, err
	}
	return d.read()
}

// read leaves out the tables of another layout.
func (d *Datapath) read() (*reading, error) {
	snapshot, err := servicemap.New(d.maps).Snapshot()
	if err != nil {
		return nil, err
	}
	r := &reading{
		Snapshot: snapshot, active: flowmap.New(d.maps).Active, rtt: flowmap.New(d.maps).RTT, outlier: servicemap.New(d.maps).Outlier,
		ranges: make(map[uint32][]netip.Prefix),
	}
	if r.now, err = servicemap.New(d.maps).Now(); err != nil {
		return nil, err
	}
	var end uint32
	for id := range snapshot.Names {
		end = max(end, id+1)
	}
	if r.stats, err = statusmap.New(d.maps).ServiceStats(end); err != nil {
		return nil, err
	}
	for _, s := range snapshot.SourceRanges {
		r.ranges[s.Service] = append(r.ranges[s.Service], s.Prefix)
	}
	for _, prefixes := range r.ranges {
		slices.SortFunc(prefixes, netip.Prefix.Compare)
	}
	return r, nil
}

// portName returns what a Service id stands for.
func (r *reading) portName(id uint32) PortName {
	name, ok := r.Names[id]
	if !ok {
		return PortName{ID: id}
	}
	return portName(id, name)
}

func portName(id uint32, name tables.ServiceName) PortName {
	return PortName{
		Namespace: name.Port.Service.Namespace,
		Service:   name.Port.Service.Name,
		PortName:  name.Port.Port,
		Port:      name.Number,
		Protocol:  name.Port.Protocol.String(),
		Family:    name.Family.String(),
		ID:        id,
	}
}

func (r *reading) counts(id uint32) Counts {
	if id >= uint32(len(r.stats)) {
		return Counts{}
	}
	s := r.stats[id]
	return Counts{Connections: s.Connections, Refused: s.Refused, Dropped: s.Dropped}
}

// ports returns all Service ports by id.
func (r *reading) ports() map[uint32]*Port {
	ports := make(map[uint32]*Port, len(r.Names))
	for id, name := range r.Names {
		service := r.Services[id]
		ports[id] = &Port{
			PortName:   r.portName(id),
			NodePort:   name.NodePort,
			Algorithm:  service.Algorithm.String(),
			Bound:      name.Bound,
			Cut:        name.Cut.Lost(),
			Forwarding: forwarding(service),
			Frontends:  []Frontend{},
			Backends:   []Backend{},
			Cluster:    r.set(service.Cluster),
			Local:      r.set(service.Local),
			Counts:     r.counts(id),
		}
	}
	for id, b := range r.Backends {
		if p := ports[b.Service]; p != nil {
			p.Backends = append(p.Backends, r.backend(id, b))
		}
	}
	for key, f := range r.Frontends {
		if p := ports[f.Service]; p != nil {
			p.addFrontend(r.frontend(key, f))
		}
	}
	for _, p := range ports {
		slices.SortFunc(p.Backends, Backend.compare)
		slices.SortFunc(p.Frontends, Frontend.compare)
	}
	return ports
}

func forwarding(s tables.Service) string {
	if s.Tunnels {
		return model.DSR.String()
	}
	return model.SNAT.String()
}

func (p *Port) addFrontend(f Frontend) {
	p.Frontends = append(p.Frontends, f)
	for _, name := range []string{f.Internal, f.External} {
		p.Cluster.Used = p.Cluster.Used || name == setCluster
		p.Local.Used = p.Local.Used || name == setLocal
	}
}

// The names of sets.
const (
	setCluster = "cluster"
	setLocal   = "local"
)

func (r *reading) set(s tables.Set) Set {
	set := Set{Kind: s.Kind.String(), Backends: []uint32{}}
	switch s.Kind {
	case policy.Backends:
		set.Backends = append(set.Backends, r.Slots(s)...)
		slices.Sort(set.Backends)
		set.Backends = slices.Compact(set.Backends)
		set.Slots = s.Count
	case policy.Reject:
		set.Reason = "no endpoint can be used"
	case policy.Drop:
		set.Reason = "no endpoint on this node can be used"
	}
	return set
}

func (r *reading) backend(id uint32, b tables.Backend) Backend {
	out := Backend{
		ID:          id,
		Address:     b.AddrPort.Addr(),
		TargetPort:  b.AddrPort.Port(),
		Ready:       b.State&tables.Ready != 0,
		Serving:     b.State&tables.Serving != 0,
		Terminating: b.State&tables.Terminating != 0,
		OnNode:      b.State&tables.OnNode != 0,
		Sets:        []string{},
		Generation:  b.Generation,
		Weight:      b.Weight,
	}
	if b.State&tables.InCluster != 0 {
		out.Sets = append(out.Sets, setCluster)
	}
	if b.State&tables.InLocal != 0 {
		out.Sets = append(out.Sets, setLocal)
	}
	if r.Services[b.Service].Algorithm.Counts() {
		out.Active = &Active{}
		out.Active.Sockets, out.Active.Flows = r.active(id, b.Generation)
	}
	if r.Services[b.Service].Algorithm == model.EWMA {
		if rtt := r.rtt(id, b.Generation, r.now); rtt != 0 {
			us := float64(rtt) / float64(time.Microsecond)
			out.Active.RTTMicroseconds = &us
		}
	}
	if r.Services[b.Service].Outliers {
		o := r.outlier(id, b.Generation)
		left := max(0, (o.Until-r.now)/time.Second)
		out.Outlier = &Outlier{Failures: o.Failures, Ejected: o.Until != 0, EjectedSeconds: int64(left), OnTrial: o.Trial != tables.NoTrial, Times: o.Times}
	}
	return out
}

func (b Backend) compare(o Backend) int {
	return cmp.Or(b.Address.Compare(o.Address), cmp.Compare(b.TargetPort, o.TargetPort),
		cmp.Compare(b.ID, o.ID))
}

func (r *reading) frontend(key tables.FrontendKey, f tables.Frontend) Frontend {
	out := Frontend{Kind: f.Kind.String(), Address: key.Addr, Port: key.Port}
	if f.Kind == tables.FrontendAddress {
		out.RefuseOthers = f.Flags&tables.RefuseOthers != 0
		return out
	}
	out.Protocol = key.Protocol.String()
	out.Internal, out.External = setCluster, setCluster
	if f.Flags&tables.InternalLocal != 0 {
		out.Internal = setLocal
	}
	if f.Flags&tables.ExternalLocal != 0 {
		out.External = setLocal
	}
	if f.Flags&tables.SourceRanges != 0 {
		out.Restricted = true
		out.SourceRanges = r.ranges[f.Service]
	}
	return out
}

// compare puts the addresses that every cluster has first.
func (f Frontend) compare(o Frontend) int {
	return cmp.Or(cmp.Compare(kindOrder[f.Kind], kindOrder[o.Kind]), f.Address.Compare(o.Address),
		cmp.Compare(f.Port, o.Port), cmp.Compare(f.Protocol, o.Protocol))
}

var kindOrder = map[string]int{
	tables.FrontendClusterIP.String():    1,
	tables.FrontendExternalIP.String():   2,
	tables.FrontendLoadBalancer.String(): 3,
	tables.FrontendNodePort.String():     4,
	tables.FrontendAddress.String():      5,
}

// IsNodePort reports whether the address stands for those of the node.
func (f Frontend) IsNodePort() bool { return f.Kind == tables.FrontendNodePort.String() }

// IsAddress reports whether the frontend stands for an address and no port.
func (f Frontend) IsAddress() bool { return f.Kind == tables.FrontendAddress.String() }
