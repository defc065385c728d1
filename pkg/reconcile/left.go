package reconcile

import (
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Serves reports whether an endpoint serves a Service port by what the sources have told last.
// It may be called beside all other methods.
func (r *Reconciler) Serves(name tables.ServicePortName, endpoint netip.AddrPort) bool {
	svc, list := r.object(name.Port.Service)
	return svc != nil && policy.Serves(svc, name.Port, endpoint, list)
}

// Knows reports whether there is a Service of that name, by what the sources have told last. It may be
// called beside all other methods.
func (r *Reconciler) Knows(service model.Name) bool {
	svc, _ := r.object(service)
	return svc != nil
}

// noteLeft notes whether an update, which is about to be taken, may end what an endpoint
// of UDP serves, or lead a frontend of UDP to another Service. The caller has the lock.
func (r *Reconciler) noteLeft(u *source.Update) {
	for _, now := range u.PutServices {
		r.udpLeft = r.udpLeft || frontendsChange(r.services[now.Name], now)
	}
	for _, name := range u.DeleteServices {
		r.udpLeft = r.udpLeft || frontendsChange(r.services[name], nil)
	}
	for _, now := range u.PutSlices {
		r.udpLeft = r.udpLeft || sliceLeaves(r.slice(now.Name), now)
	}
	for _, name := range u.DeleteSlices {
		r.udpLeft = r.udpLeft || sliceLeaves(r.slice(name), nil)
	}
}

// slice returns what a slice was last, nil when there is none. The caller has the lock.
func (r *Reconciler) slice(name model.Name) *model.Slice {
	return r.slices[r.owner[name]][name.Name]
}

// frontendsChange reports whether a Service, as it was or as it is now, has other frontends of UDP
// than the other way; nil has none. One that comes may have been another Service's.
func frontendsChange(was, now *model.Service) bool {
	if !hasUDP(was) && !hasUDP(now) {
		return false
	}
	return was == nil || now == nil || !slices.Equal(was.Ports, now.Ports) || !slices.Equal(was.ClusterIPs, now.ClusterIPs) ||
		!slices.Equal(was.ExternalIPs, now.ExternalIPs) || !slices.Equal(was.LoadBalancerIPs, now.LoadBalancerIPs)
}

// hasUDP reports whether a Service has a port of UDP; nil has none.
func hasUDP(svc *model.Service) bool {
	return svc != nil && slices.ContainsFunc(svc.Ports, func(p model.ServicePort) bool { return p.Protocol == model.UDP })
}

// sliceLeaves reports whether endpoints of UDP may serve by a slice as it was, but not as it is
// now; nil is none.
func sliceLeaves(was, now *model.Slice) bool {
	if was == nil || !slices.ContainsFunc(was.Ports, func(p model.SlicePort) bool { return p.Protocol == model.UDP }) {
		return false
	}
	var next []model.Endpoint
	if now != nil && now.Service == was.Service && slices.Equal(now.Ports, was.Ports) {
		next = now.Endpoints
	}
	for i := range was.Endpoints {
		ep := &was.Endpoints[i]
		for len(next) > 0 && next[0].Addr.Less(ep.Addr) {
			next = next[1:]
		}
		if policy.InUse(ep) && !firstInUse(next, ep.Addr) {
			return true
		}
	}
	return false
}

// firstInUse reports whether an address is in use, which list begins with if it has it.
func firstInUse(list []model.Endpoint, addr netip.Addr) bool {
	for i := 0; i < len(list) && list[i].Addr == addr; i++ {
		if policy.InUse(&list[i]) {
			return true
		}
	}
	return false
}
