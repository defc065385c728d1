package convert

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/beeline-lb/beeline/pkg/model"
)

// Slice returns the model of slice, or nil when it is to be ignored: it belongs
// to no Service or to a headless one, or it holds host names.
//
// Endpoints without a valid address of the slice's family and ports without a
// number are left out. The endpoints are in the order of their addresses, for a Service
// is compiled in that order each time a slice of it changes; those of one address stay in
// the order of the slice.
func Slice(slice *discoveryv1.EndpointSlice, allowed Annotations) *model.Slice {
	service := slice.Labels[discoveryv1.LabelServiceName]
	family, ok := sliceFamily(slice.AddressType)
	if _, headless := slice.Labels[corev1.IsHeadlessService]; headless || service == "" || !ok {
		return nil
	}
	out := &model.Slice{
		Name:      model.Name{Namespace: slice.Namespace, Name: slice.Name},
		Service:   service,
		Family:    family,
		Ports:     slicePorts(slice.Ports),
		Endpoints: endpoints(slice.Endpoints, family),
		Triggered: triggered(slice.Annotations),
	}
	annotateSlice(out, slice.Annotations, allowed)
	return out
}

// triggered returns the time that the controller of the slices notes as that of
// the change of a pod or Service; zero when it is missing or no time.
func triggered(annotations map[string]string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return time.Time{}
	}
	return at.UTC()
}

func sliceFamily(t discoveryv1.AddressType) (model.Family, bool) {
	switch t {
	case discoveryv1.AddressTypeIPv4:
		return model.IPv4, true
	case discoveryv1.AddressTypeIPv6:
		return model.IPv6, true
	}
	return 0, false
}

func slicePorts(ports []discoveryv1.EndpointPort) []model.SlicePort {
	out := make([]model.SlicePort, 0, len(ports))
	for i := range ports {
		p := &ports[i]
		proto, err := model.ParseProtocol(string(deref(p.Protocol, "")))
		port := deref(p.Port, 0)
		if err != nil || !validPort(port) {
			continue
		}
		out = append(out, model.SlicePort{
			Name:     deref(p.Name, ""),
			Protocol: proto,
			Port:     uint16(port),
		})
	}
	return slices.Clip(out)
}

// endpoints returns them in the order of their addresses.
func endpoints(list []discoveryv1.Endpoint, family model.Family) []model.Endpoint {
	out := make([]model.Endpoint, 0, len(list))
	for i := range list {
		if ep, ok := endpoint(&list[i], family); ok {
			out = append(out, ep)
		}
	}
	slices.SortStableFunc(out, func(a, b model.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return slices.Clip(out)
}

// endpoint reads only the first address: the API gives the others no meaning.
func endpoint(ep *discoveryv1.Endpoint, family model.Family) (model.Endpoint, bool) {
	if len(ep.Addresses) == 0 {
		return model.Endpoint{}, false
	}
	addr, ok := parseAddr(ep.Addresses[0])
	if !ok || model.FamilyOf(addr) != family {
		return model.Endpoint{}, false
	}
	out := model.Endpoint{
		Addr:        addr,
		NodeName:    named(deref(ep.NodeName, "")),
		Zone:        named(deref(ep.Zone, "")),
		Ready:       deref(ep.Conditions.Ready, true),
		Serving:     deref(ep.Conditions.Serving, true),
		Terminating: deref(ep.Conditions.Terminating, false),
	}
	if ep.Hints != nil {
		for _, n := range ep.Hints.ForNodes {
			out.NodeHints = appendNamed(out.NodeHints, n.Name)
		}
		for _, z := range ep.Hints.ForZones {
			out.ZoneHints = appendNamed(out.ZoneHints, z.Name)
		}
	}
	return out, true
}

// maxName is the longest name that the API allows any object, which is longer than any label's value.
const maxName = 253

// named returns the name of a node or zone; "" where no node and no zone can have it: the API server
// takes a zone of any length, and the model would keep megabytes of it.
func named(name string) string {
	if len(name) > maxName {
		return ""
	}
	return name
}

// appendNamed appends a name that a node or zone may have.
func appendNamed(names []string, name string) []string {
	if len(name) > maxName {
		return names
	}
	return append(names, name)
}

// deref returns what p points to, or missing when p is nil.
func deref[T any](p *T, missing T) T {
	if p == nil {
		return missing
	}
	return *p
}
