package convert

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/beeline-lb/beeline/pkg/maglev"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/bounds"
)

// FuzzAnnotations: an annotation that is taken is the value that it writes, one that is not
// is a fault that names it and leaves the default, and no fault is longer than people read.
func FuzzAnnotations(f *testing.F) {
	f.Add("maglev", "65521", "zone-a=3,zone-b=1", "dsr", "255")
	f.Add(" rr ", "16381", " a = 0 , b=255", "snat", "0")
	f.Add("lc", "7", "a=1,a=2", "tunnel", "-1")
	f.Add("", "", "", "", "")
	f.Add("wrr", "+1", "=1", "hybrid", "256")
	f.Add(strings.Repeat("x", 500), strings.Repeat("9", 500), strings.Repeat("z", 500)+"=300", strings.Repeat("\xff", 500), strings.Repeat("1", 500))
	f.Fuzz(func(t *testing.T, algorithm, ringSize, zones, forwarding, weight string) {
		svc, slice := &model.Service{}, &model.Slice{Name: model.Name{Name: "web-1"}}
		values := map[string]string{
			AnnotationAlgorithm: algorithm, AnnotationRingSize: ringSize, AnnotationZoneWeights: zones,
			AnnotationForwarding: forwarding, AnnotationWeight: weight,
		}
		size := len(algorithm) + len(ringSize) + len(zones) + len(forwarding) + len(weight)
		bounds.Check(t, size, func() {
			annotateService(svc, values, AllAnnotations)
			annotateSlice(slice, values, AllAnnotations)
		})
		at := make(map[string]bool)
		for _, fault := range slices.Concat(svc.Faults, slice.Faults) {
			if _, ok := values[fault.Setting]; !ok || at[fault.Setting] || fault.Reason == "" || len(fault.Reason) > 640 {
				t.Errorf("fault %q (%d bytes)", fault.String(), len(fault.Reason))
			}
			at[fault.Setting] = true
		}
		for key, written := range map[string]string{
			AnnotationAlgorithm:  svc.Algorithm.String(),
			AnnotationForwarding: svc.Forwarding.String(),
		} {
			if want := strings.TrimSpace(values[key]); at[key] && written != "" || !at[key] && written != want {
				t.Errorf("%s: %q is taken for %q", key, want, written)
			}
		}
		if at[AnnotationRingSize] != (svc.RingSize == 0) || svc.RingSize != 0 && maglev.CheckSize(svc.RingSize) != nil {
			t.Errorf("ring size %q is taken for %d", ringSize, svc.RingSize)
		}
		if at[AnnotationWeight] != (slice.Weight == nil) {
			t.Errorf("weight %q is taken for %v", weight, slice.Weight)
		}
		wantZoneWeights(t, zones, svc.ZoneWeights, at[AnnotationZoneWeights])
	})
}

// wantZoneWeights fails the test unless weights that are written again are the same.
func wantZoneWeights(t *testing.T, text string, weights map[string]uint8, fault bool) {
	t.Helper()
	if fault != (len(weights) == 0) {
		t.Fatalf("zone weights %q are %v", text, weights)
	}
	if fault {
		return
	}
	var parts []string
	for _, zone := range slices.Sorted(maps.Keys(weights)) {
		parts = append(parts, fmt.Sprintf("%s=%d", zone, weights[zone]))
	}
	again, err := zoneWeights(strings.Join(parts, ","))
	if err != nil || !maps.Equal(again, weights) {
		t.Fatalf("zone weights %q are %v and then %v, %v", text, weights, again, err)
	}
}

// FuzzObjects: of an object that an API server let in, whatever it holds, only that is
// served which can be: addresses of a family, ports, times within bounds. The object
// is left as it is, and gives the same again.
func FuzzObjects(f *testing.F) {
	f.Add([]byte(`{"metadata": {"name": "web", "namespace": "default"}, "spec": {"clusterIPs": ["10.96.0.1", "fd96::1"],
		"externalIPs": ["192.0.2.7", "::ffff:192.0.2.8"], "loadBalancerSourceRanges": [" 10.0.0.0/8 ", "::/0", "::ffff:10.0.0.0/104"],
		"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30000, "sessionAffinity": "ClientIP",
		"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 90}},
		"ports": [{"name": "a", "port": 80, "protocol": "TCP", "nodePort": 30001}, {"port": 70000}, {"port": 53, "protocol": "UDP"}]},
		"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9", "ipMode": "VIP"}, {"hostname": "x"}]}}}`))
	f.Add([]byte(`{"metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"},
		"annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2024-01-01T00:00:00Z"}}, "addressType": "IPv4",
		"ports": [{"name": "a", "port": 8080}, {"port": 0}, {"port": 65536, "protocol": "SCTP"}],
		"endpoints": [{"addresses": ["10.0.0.2"], "conditions": {"ready": false}, "hints": {"forZones": [{"name": "z"}]}},
		{"addresses": ["010.0.0.1"]}, {"addresses": ["fe80::1%eth0"]}, {"addresses": []}]}`))
	f.Add([]byte(`{"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "z"}}, "spec": {"podCIDRs": ["10.0.0.1/24", "x"],
		"taints": [{"key": "ToBeDeletedByClusterAutoscaler"}]}, "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"},
		{"type": "ExternalIP", "address": "2001:db8::1"}, {"type": "Hostname", "address": "10.0.0.9"}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		bounds.Check(t, len(data), func() {
			same(t, data, func(o *corev1.Service) *model.Service { return Service(o, Allowed{Annotations: AllAnnotations}) }, wantService)
			same(t, data, func(o *discoveryv1.EndpointSlice) *model.Slice { return Slice(o, AllAnnotations) }, wantSlice)
			same(t, data, LocalNode, func(t *testing.T, n *model.LocalNode) { wantAddrs(t, n.Addrs); wantPrefixes(t, n.PodRanges) })
			same(t, data, Node, func(t *testing.T, p *model.Node) {
				wantAddrs(t, p.Addrs)
				wantPrefixes(t, p.PodRanges)
				if p.Tunnel.IsValid() != (len(p.Addrs) > 0) || p.Tunnel.IsValid() && !slices.Contains(p.Addrs, p.Tunnel) {
					t.Errorf("the tunnel ends at %v of %v", p.Tunnel, p.Addrs)
				}
			})
		})
	})
}

// same converts an object twice and checks what it becomes.
func same[O, M any](t *testing.T, data []byte, convert func(*O) *M, check func(*testing.T, *M)) {
	t.Helper()
	var object, before O
	if json.Unmarshal(data, &object) != nil || json.Unmarshal(data, &before) != nil {
		return
	}
	got, again := convert(&object), convert(&object)
	if !reflect.DeepEqual(got, again) {
		t.Errorf("%+v is then %+v", got, again)
	}
	if !reflect.DeepEqual(object, before) {
		t.Errorf("the object is changed to %+v", object)
	}
	if got != nil {
		check(t, got)
	}
}

func wantService(t *testing.T, svc *model.Service) {
	wantAddrs(t, slices.Concat(svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs))
	wantPrefixes(t, svc.SourceRanges)
	for _, p := range svc.Ports {
		if _, err := model.ParseProtocol(p.Protocol.String()); err != nil || p.Port == 0 {
			t.Errorf("port %+v", p)
		}
	}
	if svc.AffinitySeconds > 86400 || svc.HealthCheckPort != 0 && !svc.ExternalLocal {
		t.Errorf("affinity of %d s, health check at %d", svc.AffinitySeconds, svc.HealthCheckPort)
	}
}

func wantSlice(t *testing.T, slice *model.Slice) {
	if slice.Service == "" || slice.Family != model.IPv4 && slice.Family != model.IPv6 {
		t.Errorf("a slice of Service %q, %s", slice.Service, slice.Family)
	}
	for i, e := range slice.Endpoints {
		wantAddrs(t, []netip.Addr{e.Addr})
		if model.FamilyOf(e.Addr) != slice.Family || i > 0 && e.Addr.Less(slice.Endpoints[i-1].Addr) {
			t.Errorf("endpoint %s of an %s slice, behind %v", e.Addr, slice.Family, slice.Endpoints[:i])
		}
	}
	for _, p := range slice.Ports {
		if _, err := model.ParseProtocol(p.Protocol.String()); err != nil || p.Port == 0 {
			t.Errorf("port %+v", p)
		}
	}
}

func wantAddrs(t *testing.T, addrs []netip.Addr) {
	t.Helper()
	for _, a := range addrs {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
			t.Errorf("address %v", a)
		}
	}
}

func wantPrefixes(t *testing.T, prefixes []netip.Prefix) {
	t.Helper()
	for _, p := range prefixes {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
			t.Errorf("prefix %v", p)
		}
	}
}
