package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// The ranges of the Services' addresses.
var (
	services4 = netip.MustParsePrefix("10.96.0.0/16")
	services6 = netip.MustParsePrefix("fd00:10:96::/112")
)

const (
	servicePort  = 80
	endpointPort = 8080
)

// elsewhere is the node of all endpoints.
const elsewhere = "elsewhere"

// nth returns an address of a prefix.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().As16()
	for i := 15; n > 0; i-- {
		n += int(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	return netip.AddrFrom16(b).Unmap()
}

// load is Services of one port and protocol, both families, all alike but for
// every tenth, which has session affinity and is a NodePort.
type load struct {
	services  int
	endpoints int // of each Service
	protocol  model.Protocol
	// published says that those with session affinity are NodePorts in the API
	// server too.
	published bool
	// ring is the size of the rings when the Services are of Maglev; 0: they are not.
	ring uint32
	// algorithms are those of the Services, in turn; none is the default.
	algorithms []model.Algorithm
}

func (l load) special(i int) bool { return i%10 == 0 }

// clusterIP returns the address of Service i.
func (l load) clusterIP(i int, family model.Family) netip.Addr {
	const first = 16 // those before may be the cluster's own
	if family == model.IPv4 {
		return nth(services4, first+i)
	}
	return nth(services6, first+i)
}

// endpoint returns the address of endpoint e of Service i.
func (l load) endpoint(i, e int, family model.Family) netip.Addr {
	if family == model.IPv4 {
		return nth(endpoints4, i*l.endpoints+e+1)
	}
	return nth(endpoints6, i*l.endpoints+e+1)
}

func (l load) service(i int) *model.Service {
	s := &model.Service{
		Name:       model.Name{Namespace: "bench", Name: fmt.Sprintf("service-%05d", i)},
		Type:       "ClusterIP",
		ClusterIPs: []netip.Addr{l.clusterIP(i, model.IPv4), l.clusterIP(i, model.IPv6)},
		Ports:      []model.ServicePort{{Protocol: l.protocol, Port: servicePort}},
	}
	if len(l.algorithms) > 0 {
		s.Algorithm = l.algorithms[i%len(l.algorithms)]
	}
	if l.special(i) {
		s.AffinitySeconds = 10800
		s.Type, s.Ports[0].NodePort = "NodePort", uint16(30000+i/10)
	}
	return s
}

func (l load) slice(i int, family model.Family) *model.Slice {
	service := l.service(i).Name
	s := &model.Slice{
		Name:    model.Name{Namespace: service.Namespace, Name: fmt.Sprintf("%s-%s", service.Name, family)},
		Service: service.Name,
		Family:  family,
		Ports:   []model.SlicePort{{Protocol: l.protocol, Port: endpointPort}},
	}
	for e := range l.endpoints {
		s.Endpoints = append(s.Endpoints, model.Endpoint{
			Addr: l.endpoint(i, e, family), NodeName: elsewhere, Ready: true, Serving: true,
		})
	}
	return s
}

func (l load) update() source.Update {
	var u source.Update
	for i := range l.services {
		u.PutServices = append(u.PutServices, l.service(i))
		for _, family := range model.Families {
			u.PutSlices = append(u.PutSlices, l.slice(i, family))
		}
	}
	return u
}

// serve loads the datapath with the update and attaches it to the cgroup. It goes
// on until the process ends.
func serve(ctx context.Context, box *sandbox, cgroup string, u source.Update) (*datapath.Datapath, error) {
	return serveWith(ctx, datapath.Options{BPFFS: box.bpffs, Cgroup: cgroup, Sizes: bpfmap.DefaultSizes, LocalityIdle: time.Hour}, u)
}

// serveWith is serve with other options.
func serveWith(ctx context.Context, o datapath.Options, u source.Update) (*datapath.Datapath, error) {
	d, err := datapath.Prepare(ctx, o)
	if err != nil {
		return nil, err
	}
	have, err := d.Services().Snapshot()
	if err != nil {
		return nil, err
	}
	ctx, done := context.WithCancel(ctx)
	defer done()
	pending := 0
	r := reconcile.New(tables.Restore(d.Services(), have), d.Services(), reconcile.Options{
		LocalNode: model.LocalNode{Name: "node"},
		Complete:  d.Attach,
		Synced: func(s reconcile.Sync) {
			pending = s.Pending
			done()
		},
	})
	u.ServiceCIDRs = []netip.Prefix{services4, services6}
	r.Apply(u)
	r.Synced()
	if err := r.Run(ctx); err != nil {
		return nil, err
	}
	if pending > 0 {
		return nil, fmt.Errorf("%d Services could not be loaded", pending)
	}
	return d, nil
}
