package kube

import (
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// slimSlice is an EndpointSlice of which what convert does not read is not decoded from
// protobuf. A slice comes whole when one of its endpoints changes: the 1,400 objects that
// 100 endpoints else become cost more than all that is done with them.
type slimSlice struct {
	discoveryv1.EndpointSlice `json:",inline"`
}

// slimSlices is a list of them.
type slimSlices struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []slimSlice `json:"items"`
}

// addSlimSlices registers the slices and what else clients of their API group need.
func addSlimSlices(scheme *runtime.Scheme) error {
	version := discoveryv1.SchemeGroupVersion
	scheme.AddKnownTypeWithName(version.WithKind("EndpointSlice"), &slimSlice{})
	scheme.AddKnownTypeWithName(version.WithKind("EndpointSliceList"), &slimSlices{})
	metav1.AddToGroupVersion(scheme, version)
	return nil
}

// DeepCopyObject implements [runtime.Object].
func (s *slimSlice) DeepCopyObject() runtime.Object { return &slimSlice{*s.DeepCopy()} }

// DeepCopyObject implements [runtime.Object].
func (l *slimSlices) DeepCopyObject() runtime.Object {
	out := &slimSlices{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy(), Items: make([]slimSlice, len(l.Items))}
	for i := range l.Items {
		l.Items[i].EndpointSlice.DeepCopyInto(&out.Items[i].EndpointSlice)
	}
	return out
}

// Reset empties the list.
func (l *slimSlices) Reset() { *l = slimSlices{} }

// Unmarshal adds what data holds, of k8s.io.api.discovery.v1.EndpointSliceList.
func (l *slimSlices) Unmarshal(data []byte) error {
	items, err := countFields(data, 2)
	if err != nil {
		return err
	}
	l.Items = make([]slimSlice, 0, items)
	return eachField(data, func(f field) error {
		switch f.number {
		case 1:
			return l.ListMeta.Unmarshal(f.bytes)
		case 2:
			l.Items = append(l.Items, slimSlice{})
			return l.Items[len(l.Items)-1].Unmarshal(f.bytes)
		}
		return nil
	})
}

// Unmarshal adds what data holds, of k8s.io.api.discovery.v1.EndpointSlice.
func (s *slimSlice) Unmarshal(data []byte) error {
	endpoints, err := countFields(data, 2)
	if err != nil {
		return err
	}
	s.Endpoints = make([]discoveryv1.Endpoint, 0, endpoints)
	err = eachField(data, func(f field) error {
		switch f.number {
		case 1:
			return s.ObjectMeta.Unmarshal(f.bytes)
		case 2:
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{})
			return decodeEndpoint(&s.Endpoints[len(s.Endpoints)-1], f.bytes)
		case 3:
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{})
			return s.Ports[len(s.Ports)-1].Unmarshal(f.bytes)
		case 4:
			s.AddressType = discoveryv1.AddressType(f.bytes)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("decode an EndpointSlice: %w", err)
	}
	return nil
}

// decodeEndpoint leaves out the host name, the pod and the former topology.
func decodeEndpoint(ep *discoveryv1.Endpoint, data []byte) error {
	return eachField(data, func(f field) error {
		switch f.number {
		case 1:
			ep.Addresses = append(ep.Addresses, string(f.bytes))
		case 2:
			return decodeConditions(&ep.Conditions, f.bytes)
		case 6:
			ep.NodeName = new(string(f.bytes))
		case 7:
			ep.Zone = new(string(f.bytes))
		case 8:
			if ep.Hints == nil {
				ep.Hints = new(discoveryv1.EndpointHints)
			}
			return ep.Hints.Unmarshal(f.bytes)
		}
		return nil
	})
}

func decodeConditions(c *discoveryv1.EndpointConditions, data []byte) error {
	return eachField(data, func(f field) error {
		switch f.number {
		case 1:
			c.Ready = new(f.varint != 0)
		case 2:
			c.Serving = new(f.varint != 0)
		case 3:
			c.Terminating = new(f.varint != 0)
		}
		return nil
	})
}
