package inspect

import (
	"net/netip"
	"slices"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Status is the state of the datapath and of its agent.
type Status struct {
	Directory string `json:"directory"` // of the pins
	Schema    int    `json:"schema"`    // version of the maps' layout
	// Unread are the tables that another version has pinned, in another layout. What they hold
	// counts as nothing elsewhere.
	Unread   []UnreadTable `json:"unread,omitempty"`
	Agent    Agent         `json:"agent"`
	Served   Served        `json:"served"`
	Tunnel   Tunnel        `json:"tunnel"` // of direct server return
	Flows    Flows         `json:"flows"`
	Programs []Program     `json:"programs"` // of sockets
	Devices  []Device      `json:"devices"`  // on which packets are served
	// DeviceFaults are the devices that the programs could not be attached to.
	DeviceFaults []DeviceFault `json:"deviceFaults"`
	NAT          NAT           `json:"nat"`
	// Sandboxes is the number of devices of pods whose sockets the kernel does not see, at which their
	// packets are served.
	Sandboxes int       `json:"sandboxes"`
	Maps      []Map     `json:"maps"`
	Counters  []Counter `json:"counters"`
	// Refusals are the Service ports of which connections were refused or dropped.
	Refusals []Refusal `json:"refusals"`
	// NodeAddresses are those that NodePorts answer on.
	NodeAddresses []NodeAddress `json:"nodeAddresses"`
	// ServiceCIDRs are the ranges in which an address without a Service is
	// refused.
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs"`
}

// Agent is the agent's latest record of itself. While Running is false, the other
// fields tell of the last one.
type Agent struct {
	Running bool   `json:"running"`
	PID     int    `json:"pid"` // 0: not known
	Version string `json:"version"`
	Node    string `json:"node"`
	Source  string `json:"source"` // where Services come from
	Cgroup  string `json:"cgroup"` // path of the cgroup whose sockets are served

	Started  time.Time `json:"started,omitzero"`
	LastSync time.Time `json:"lastSync,omitzero"`
	Syncs    uint64    `json:"syncs"` // since the start
	// Pending counts the Services whose last sync failed.
	Pending uint64 `json:"pending"`
	// WaitingSince is when the oldest change came in that a running agent has not applied; zero when
	// there is none.
	WaitingSince time.Time `json:"waitingSince,omitzero"`
	// KeepsSockets is set where the kernel cannot destroy connected UDP sockets whose
	// endpoint is gone.
	KeepsSockets bool `json:"keepsSockets,omitempty"`
}

// Flows is the room for connections of clients outside of the node.
type Flows struct {
	Room    int    `json:"room"`
	SizedBy string `json:"sizedBy,omitempty"` // what that follows from
	// Evicted are connections that were taken out of the full table since the agent's
	// start, as far as is known; established ones have been broken by it.
	EvictedEstablished uint64    `json:"evictedEstablished"`
	EvictedHalfOpen    uint64    `json:"evictedHalfOpen"`
	LastEvicted        time.Time `json:"lastEvicted,omitzero"` // an established one
	// EvictedRecently are those of the last minute or so; nil when that is not known.
	EvictedRecently *EvictedRecently `json:"evictedRecently,omitempty"`
}

// EvictedRecently are the connections of which the running agent noticed in a time that they
// were taken out of the full table.
type EvictedRecently struct {
	From        time.Time `json:"from"`
	To          time.Time `json:"to"`
	Established uint64    `json:"established"`
	HalfOpen    uint64    `json:"halfOpen"`
}

// Served counts the entries in the tables.
type Served struct {
	Services  int `json:"services"`
	Ports     int `json:"ports"` // each family counted
	Frontends int `json:"frontends"`
	Backends  int `json:"backends"`
	// Limited counts the Services that get less than they ask for, so that others have room.
	Limited int `json:"limited"`
}

// Program is an attached program.
type Program struct {
	Name      string `json:"name"`
	Attach    string `json:"attach"` // the hook
	ProgramID uint32 `json:"programID"`
	Tag       string `json:"tag"`
	LinkID    uint32 `json:"linkID"`
	CgroupID  uint64 `json:"cgroupID"` // 0: the cgroup has been removed
}

// Device is a device on which packets are served.
type Device struct {
	Name    string `json:"name"`
	Ifindex int    `json:"ifindex"`
	Reason  string `json:"reason"` // why it was chosen
	// Attach is tcx or clsact; empty when a program is missing.
	Attach string `json:"attach"`
	// Addresses are the source of connections that leave by the device to backends
	// on other nodes.
	Addresses []netip.Addr `json:"addresses"`
	ID        uint32       `json:"id"` // by which flows name it
	// XDP is native, generic or off. NoXDP is why it is off although it was asked for.
	XDP   string `json:"xdp"`
	NoXDP string `json:"noXDP,omitempty"`
	// XDPBeside names the other XDP programs of the device, of a dispatcher of libxdp.
	XDPBeside []string `json:"xdpBeside,omitempty"`
}

// DeviceFault is a device that the programs could not be attached to.
type DeviceFault struct {
	Name    string `json:"name"`    // empty: the devices could not be looked at
	Ifindex int    `json:"ifindex"` // 0 likewise
	Role    string `json:"role"`    // what it is for: clients, pods, backends
	Error   string `json:"error"`
	Tries   int    `json:"tries"`

	Since   time.Time `json:"since"`
	NextTry time.Time `json:"nextTry"`
}

// NAT counts the network namespaces that translate their own connections (nat OUTPUT), as a mesh's
// sidecar has it done.
type NAT struct {
	// Left are those whose sockets are left alone, for packets are served at their devices.
	Left int `json:"left"`
	// Served are those whose sockets are served like others, for none of their devices can be.
	Served int `json:"served"`
}

// Map is how full a map is.
type Map struct {
	Name string `json:"name"`
	// Used and Size count entries; Size 0 is a map that cannot fill up.
	Used uint32 `json:"used"`
	Size uint32 `json:"size"`
	// Setting is the field of the configuration that sets Size; the command prints the
	// agent's flag in its place.
	Setting     string `json:"setting,omitempty"`
	MemoryBytes uint64 `json:"memoryBytes"` // kernel memory
}

// Fill returns the part that is in use, 0 to 1.
func (m Map) Fill() float64 { return float64(m.Used) / float64(max(m.Size, 1)) }

// Counter counts connections or packets by outcome and reason.
type Counter struct {
	Reason string `json:"reason"`
	Count  uint64 `json:"count"`
	// Effect is refused, dropped, served or passed.
	Effect string `json:"effect"`
}

// Refusal is a Service port with its connections that were refused or dropped.
type Refusal struct {
	PortName
	Count uint64 `json:"count"`
}

// NodeAddress is an address that NodePorts answer on.
type NodeAddress struct {
	Address netip.Addr `json:"address"`
	// HostOnly is set for loopback: it answers in the node's own network
	// namespace only.
	HostOnly bool `json:"hostOnly,omitempty"`
}

// Status returns the state of the datapath and of its agent.
func (d *Datapath) Status() (*Status, error) {
	r, err := d.read()
	if err != nil {
		return nil, err
	}
	s := &Status{
		Directory:     datapath.Dir(d.bpffs),
		Schema:        bpfmap.Schema,
		Unread:        d.Unread(),
		Served:        served(r.Snapshot),
		NodeAddresses: nodeAddresses(r.Snapshot),
		ServiceCIDRs:  append([]netip.Prefix{}, r.ServiceCIDRs...),
		Refusals:      r.refusals(),
	}
	slices.SortFunc(s.ServiceCIDRs, netip.Prefix.Compare)
	if s.Served.Limited, err = statusmap.New(d.maps).Limited(); err != nil {
		return nil, err
	}
	if s.Maps, err = d.fill(r); err != nil {
		return nil, err
	}
	if s.Counters, err = d.counters(); err != nil {
		return nil, err
	}
	if s.Programs, err = programs(d.bpffs); err != nil {
		return nil, err
	}
	if s.Devices, err = d.devices(); err != nil {
		return nil, err
	}
	if s.DeviceFaults, err = d.deviceFaults(); err != nil {
		return nil, err
	}
	if s.NAT, err = d.nat(); err != nil {
		return nil, err
	}
	sandboxes, err := devicemap.NewSandboxes(d.maps).List()
	if err != nil {
		return nil, err
	}
	s.Sandboxes = len(sandboxes)
	if s.Tunnel, err = d.tunnel(); err != nil {
		return nil, err
	}
	if s.Agent, err = d.agent(); err != nil {
		return nil, err
	}
	s.Flows, err = d.flows(s.Agent.Running)
	return s, err
}

// fill returns how full all maps are.
func (d *Datapath) fill(r *reading) (list []Map, err error) {
	fills, err := statusmap.New(d.maps).Fill(r.Snapshot)
	for _, f := range fills {
		if d.need(f.Map) != nil {
			continue
		}
		list = append(list, Map{f.Map, f.Entries, f.Size, f.Setting, f.Memory})
	}
	return list, err
}

func (d *Datapath) counters() (list []Counter, err error) {
	reasons, err := statusmap.New(d.maps).Reasons()
	for _, r := range reasons {
		list = append(list, Counter{r.Name, r.Count, string(r.Effect)})
	}
	return list, err
}

func (d *Datapath) deviceFaults() ([]DeviceFault, error) {
	list := []DeviceFault{}
	faults, err := devicemap.New(d.maps).Faults()
	for _, f := range faults {
		list = append(list, DeviceFault{f.Name, f.Ifindex, f.Role, f.Error, f.Tries, f.Since, f.Next})
	}
	return list, err
}

func (d *Datapath) nat() (n NAT, err error) {
	namespaces, err := devicemap.New(d.maps).NAT()
	for _, ifindexes := range namespaces {
		if len(ifindexes) > 0 {
			n.Left++
		} else {
			n.Served++
		}
	}
	return n, err
}

// flows returns the room of the flow table; how many were evicted of late, only a running agent knows.
func (d *Datapath) flows(running bool) (Flows, error) {
	a := statusmap.New(d.maps).Agent()
	f := Flows{
		Room: d.maps.MaxFlows(), SizedBy: a.SizedBy,
		EvictedEstablished: a.Evicted.Established, EvictedHalfOpen: a.Evicted.HalfOpen, LastEvicted: a.Evicted.Last,
	}
	if !running {
		return f, nil
	}
	recent, err := statusmap.New(d.maps).RecentlyEvicted()
	if recent.To.After(recent.From) {
		f.EvictedRecently = &EvictedRecently{recent.From, recent.To, recent.Established, recent.HalfOpen}
	}
	return f, err
}

func (r *reading) refusals() []Refusal {
	list := []Refusal{}
	for id := range r.Names {
		if n := r.counts(id).Refused; n > 0 {
			list = append(list, Refusal{r.portName(id), n})
		}
	}
	slices.SortFunc(list, func(a, b Refusal) int { return a.compare(b.PortName) })
	return list
}

func served(s tables.Snapshot) Served {
	services := make(map[model.Name]struct{})
	for _, name := range s.Names {
		services[name.Port.Service] = struct{}{}
	}
	return Served{Services: len(services), Ports: len(s.Names), Frontends: len(s.Frontends), Backends: len(s.Backends)}
}

func nodeAddresses(s tables.Snapshot) []NodeAddress {
	list := make([]NodeAddress, 0, len(s.NodeAddrs))
	for addr, a := range s.NodeAddrs {
		list = append(list, NodeAddress{addr, a.HostOnly})
	}
	slices.SortFunc(list, func(a, b NodeAddress) int { return a.Address.Compare(b.Address) })
	return list
}

func programs(bpffs string) ([]Program, error) {
	links, err := datapath.Links(bpffs)
	if err != nil {
		return nil, err
	}
	list := make([]Program, 0, len(links))
	for _, l := range links {
		list = append(list, Program{l.Program, l.Attach, l.ProgramID, l.ProgramTag, l.ID, l.Cgroup})
	}
	return list, nil
}

func (d *Datapath) devices() ([]Device, error) {
	devices, err := datapath.Devices(d.bpffs, d.maps)
	if err != nil {
		return nil, err
	}
	list := make([]Device, 0, len(devices))
	for _, v := range devices {
		addrs := slices.DeleteFunc([]netip.Addr{v.Addr4, v.Addr6}, func(a netip.Addr) bool { return !a.IsValid() })
		list = append(list, Device{v.Name, v.Ifindex, v.Reason, string(v.Mode), addrs, v.ID, string(v.XDP), v.NoXDP, v.XDPBeside})
	}
	return list, nil
}

func (d *Datapath) agent() (Agent, error) {
	pid, running, err := datapath.Running(d.bpffs)
	if err != nil {
		return Agent{}, err
	}
	told := statusmap.New(d.maps).Agent()
	a := Agent{
		Running:  running,
		PID:      told.PID,
		Version:  told.Version,
		Node:     told.Node,
		Source:   told.Source,
		Cgroup:   told.Cgroup,
		LastSync: told.Synced,
		Syncs:    told.Syncs,
		Pending:  told.Pending,

		KeepsSockets: told.KeepsSockets,
	}
	if running {
		a.PID, a.WaitingSince = pid, statusmap.New(d.maps).Waiting()
	}
	if told.PID != 0 {
		a.Started = told.Started
	}
	return a, nil
}
