package convert

import (
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/model"
)

// plainSlice is a slice of one bare endpoint that a case changes one thing of.
func plainSlice() *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop",
			Name:      "cart-x7",
			Labels:    map[string]string{"kubernetes.io/service-name": "cart"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
	}
}

func plainModel() *model.Slice {
	return &model.Slice{
		Name:    model.Name{Namespace: "shop", Name: "cart-x7"},
		Service: "cart",
		Family:  model.IPv4,
		Ports:   []model.SlicePort{{Protocol: model.TCP, Port: 8080}},
		Endpoints: []model.Endpoint{
			{Addr: addrs("10.0.0.1")[0], Ready: true, Serving: true},
		},
	}
}

func TestSliceIgnored(t *testing.T) {
	for name, edit := range map[string]func(*discoveryv1.EndpointSlice){
		"headless":             func(s *discoveryv1.EndpointSlice) { s.Labels[corev1.IsHeadlessService] = "" },
		"no labels":            func(s *discoveryv1.EndpointSlice) { s.Labels = nil },
		"empty service name":   func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "" },
		"FQDN":                 func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN },
		"unknown address type": func(s *discoveryv1.EndpointSlice) { s.AddressType = "IPv5" },
	} {
		t.Run(name, func(t *testing.T) {
			s := plainSlice()
			edit(s)
			if got := Slice(s, AllAnnotations); got != nil {
				t.Errorf("Slice = %+v, want nil", got)
			}
		})
	}
}

func TestSlice(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*discoveryv1.EndpointSlice)
		want func(*model.Slice)
	}{
		{
			"defaults",
			func(*discoveryv1.EndpointSlice) {},
			func(*model.Slice) {},
		}, {
			"conditions all set",
			func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{
					Ready: new(false), Serving: new(false), Terminating: new(true),
				}
			},
			func(m *model.Slice) {
				m.Endpoints[0].Ready, m.Endpoints[0].Serving, m.Endpoints[0].Terminating = false, false, true
			},
		}, {
			"only ready is set: serving stays true",
			func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = new(false) },
			func(m *model.Slice) { m.Endpoints[0].Ready = false },
		}, {
			"place and hints",
			func(s *discoveryv1.EndpointSlice) {
				ep := &s.Endpoints[0]
				ep.NodeName, ep.Zone = new("node-1"), new("zone-a")
				ep.Hints = &discoveryv1.EndpointHints{
					ForNodes: []discoveryv1.ForNode{{Name: "node-1"}},
					ForZones: []discoveryv1.ForZone{{Name: "zone-a"}, {Name: "zone-b"}},
				}
			},
			func(m *model.Slice) {
				ep := &m.Endpoints[0]
				ep.NodeName, ep.Zone = "node-1", "zone-a"
				ep.NodeHints, ep.ZoneHints = []string{"node-1"}, []string{"zone-a", "zone-b"}
			},
		}, {
			"names that no node and no zone can have",
			func(s *discoveryv1.EndpointSlice) {
				long := strings.Repeat("a", 254)
				ep := &s.Endpoints[0]
				ep.NodeName, ep.Zone = &long, &long
				ep.Hints = &discoveryv1.EndpointHints{
					ForNodes: []discoveryv1.ForNode{{Name: long}, {Name: "node-1"}},
					ForZones: []discoveryv1.ForZone{{Name: "zone-a"}, {Name: long}},
				}
			},
			func(m *model.Slice) {
				m.Endpoints[0].NodeHints, m.Endpoints[0].ZoneHints = []string{"node-1"}, []string{"zone-a"}
			},
		}, {
			"hints without any name",
			func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Hints = &discoveryv1.EndpointHints{} },
			func(*model.Slice) {},
		}, {
			"only the first address",
			func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"10.0.0.1", "10.0.0.2"} },
			func(*model.Slice) {},
		}, {
			"the first address is invalid: the second is not taken",
			func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"pod-1", "10.0.0.2"} },
			func(m *model.Slice) { m.Endpoints = []model.Endpoint{} },
		}, {
			"endpoints without a usable address leave the others",
			func(s *discoveryv1.EndpointSlice) {
				s.Endpoints = append([]discoveryv1.Endpoint{
					{}, {Addresses: []string{""}}, {Addresses: []string{"fd00::1"}},
				}, s.Endpoints...)
			},
			func(*model.Slice) {},
		}, {
			"endpoints in the order of addresses, those of one address as they are",
			func(s *discoveryv1.EndpointSlice) {
				s.Endpoints = []discoveryv1.Endpoint{
					{Addresses: []string{"10.0.0.10"}},
					{Addresses: []string{"10.0.0.9"}, NodeName: new("b")},
					{Addresses: []string{"10.0.0.1"}},
					{Addresses: []string{"10.0.0.9"}, NodeName: new("a")},
				}
			},
			func(m *model.Slice) {
				all := addrs("10.0.0.1", "10.0.0.9", "10.0.0.10")
				m.Endpoints = []model.Endpoint{
					{Addr: all[0], Ready: true, Serving: true},
					{Addr: all[1], Ready: true, Serving: true, NodeName: "b"},
					{Addr: all[1], Ready: true, Serving: true, NodeName: "a"},
					{Addr: all[2], Ready: true, Serving: true},
				}
			},
		}, {
			"IPv6 slice takes no IPv4, mapped or not",
			func(s *discoveryv1.EndpointSlice) {
				s.AddressType = discoveryv1.AddressTypeIPv6
				s.Endpoints = []discoveryv1.Endpoint{
					{Addresses: []string{"10.0.0.1"}},
					{Addresses: []string{"::ffff:10.0.0.1"}},
					{Addresses: []string{"fe80::1%eth0"}},
					{Addresses: []string{"fd00::1"}},
				}
			},
			func(m *model.Slice) {
				m.Family, m.Endpoints[0].Addr = model.IPv6, addrs("fd00::1")[0]
			},
		}, {
			"ports: names, protocols, numbers",
			func(s *discoveryv1.EndpointSlice) {
				tcp, udp, sctp, other := corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP, corev1.Protocol("DCCP")
				s.Ports = []discoveryv1.EndpointPort{
					{Name: new("a"), Protocol: &tcp, Port: new(int32(1))},
					{Name: new("b"), Protocol: &udp, Port: new(int32(65535))},
					{Name: new("c"), Protocol: &sctp, Port: new(int32(3))},
					{Name: new("unknown protocol"), Protocol: &other, Port: new(int32(4))},
					{Name: new("all ports"), Protocol: &tcp},
					{Name: new("zero"), Protocol: &tcp, Port: new(int32(0))},
					{Name: new("negative"), Protocol: &tcp, Port: new(int32(-1))},
					{Name: new("wraps to 80"), Protocol: &tcp, Port: new(int32(65536 + 80))},
					{Name: new(""), Port: new(int32(5))},
				}
			},
			func(m *model.Slice) {
				m.Ports = []model.SlicePort{
					{Name: "a", Protocol: model.TCP, Port: 1},
					{Name: "b", Protocol: model.UDP, Port: 65535},
					{Name: "c", Protocol: model.SCTP, Port: 3},
					{Name: "", Protocol: model.TCP, Port: 5},
				}
			},
		}, {
			"when it was triggered",
			func(s *discoveryv1.EndpointSlice) {
				s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-03-01T13:00:00.5+01:00"}
			},
			func(m *model.Slice) { m.Triggered = time.Date(2026, 3, 1, 12, 0, 0, 5e8, time.UTC) },
		}, {
			"a trigger that is no time",
			func(s *discoveryv1.EndpointSlice) {
				s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "yesterday"}
			},
			func(*model.Slice) {},
		}, {
			"a slice of a Service left to another proxy is as good as any",
			func(s *discoveryv1.EndpointSlice) { s.Labels[LabelServiceProxyName] = "other" },
			func(*model.Slice) {},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, want := plainSlice(), plainModel()
			c.edit(s)
			c.want(want)
			before := s.DeepCopy()
			if got := Slice(s, AllAnnotations); !reflect.DeepEqual(got, want) {
				t.Errorf("Slice:\n got %+v\nwant %+v", got, want)
			}
			if !reflect.DeepEqual(s, before) {
				t.Errorf("Slice changed its argument to %+v", s)
			}
		})
	}
}
