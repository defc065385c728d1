package convert

import (
	"reflect"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/beeline-lb/beeline/pkg/model"
)

func TestServiceAnnotations(t *testing.T) {
	for _, tt := range []struct {
		key, value string
		edit       func(*model.Service) // what is different; nil with a fault
		fault      string               // part of the reason
	}{
		{"service.beeline.io/algorithm", "maglev", func(s *model.Service) { s.Algorithm = model.Maglev }, ""},
		{"service.beeline.io/algorithm", " wrr ", func(s *model.Service) { s.Algorithm = model.WeightedRoundRobin }, ""},
		{"service.beeline.io/algorithm", "ovf", nil, `"ovf" is none of random, rr, wrr, sh, dh, maglev, lc, wlc, sed, nq, lblc, lblcr, ewma`},
		{"service.beeline.io/algorithm", "", nil, `"" is none of`},
		{"service.beeline.io/maglev-size", "65521", func(s *model.Service) { s.RingSize = 65521 }, ""},
		{"service.beeline.io/maglev-size", "65537", nil, "65537 is none of the ring sizes [251 "},
		{"service.beeline.io/maglev-size", "-1", nil, `"-1" is none of the ring sizes`},
		{"service.beeline.io/zone-weights", "zone-a=3,zone-b=1", func(s *model.Service) {
			s.ZoneWeights = map[string]uint8{"zone-a": 3, "zone-b": 1}
		}, ""},
		{"service.beeline.io/zone-weights", " a = 0 , b=255", func(s *model.Service) {
			s.ZoneWeights = map[string]uint8{"a": 0, "b": 255}
		}, ""},
		{"service.beeline.io/zone-weights", "a=3,b", nil, `"b" is no weight of a zone`},
		{"service.beeline.io/zone-weights", "=3", nil, `"=3" is no weight of a zone`},
		{"service.beeline.io/zone-weights", "a=3,a=4", nil, `zone "a" has two weights`},
		{"service.beeline.io/zone-weights", "a=256", nil, `zone "a": "256" is no number from 0 to 255`},
		{"service.beeline.io/zone-weights", strings.Repeat("a=1,", 128) + "b=1", nil, "weights of 129 zones, want 128 at most"},
		{"service.beeline.io/zone-weights", strings.Repeat("a", 254) + "=1", nil, "is longer than 253 characters"},
		{"service.beeline.io/slow-start", "1m", func(s *model.Service) { s.SlowStart = time.Minute }, ""},
		{"service.beeline.io/slow-start", "5s", nil, `"5s" is no duration from 10s to 1h0m0s`},
		{"service.beeline.io/forwarding-mode", "dsr", func(s *model.Service) { s.Forwarding = model.DSR }, ""},
		{"service.beeline.io/forwarding-mode", "snat", func(s *model.Service) { s.Forwarding = model.SNAT }, ""},
		{"service.beeline.io/forwarding-mode", "DSR", nil, `"DSR" is none of snat, dsr, hybrid`},
		{"service.beeline.io/other", "x", func(*model.Service) {}, ""},
	} {
		svc, want := clusterService(), clusterModel()
		svc.Annotations = map[string]string{tt.key: tt.value}
		got := Service(svc, Allowed{Annotations: AllAnnotations})
		if tt.edit != nil {
			tt.edit(want)
		} else if len(got.Faults) != 1 || got.Faults[0].Setting != tt.key || !strings.Contains(got.Faults[0].Reason, tt.fault) {
			t.Errorf("%s %q: faults %v, want %q", tt.key, tt.value, got.Faults, tt.fault)
		} else {
			got.Faults = nil
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s %q: %+v, want %+v", tt.key, tt.value, got, want)
		}
	}
}

func TestSliceWeight(t *testing.T) {
	for value, want := range map[string]int{"0": 0, "7": 7, "255": 255, "256": -1, "-1": -1, "": -1, "many": -1} {
		slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
		slice.Name = "web-1"
		slice.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
		slice.Annotations = map[string]string{"service.beeline.io/weight": value}
		got := Slice(slice, AllAnnotations)
		switch {
		case want < 0:
			if got.Weight != nil || len(got.Faults) != 1 ||
				!strings.HasPrefix(got.Faults[0].String(), "EndpointSlice web-1: annotation service.beeline.io/weight: ") {
				t.Errorf("%q: weight %v, faults %v", value, got.Weight, got.Faults)
			}
		case got.Weight == nil || int(*got.Weight) != want || got.Faults != nil:
			t.Errorf("%q: weight %v, faults %v", value, got.Weight, got.Faults)
		}
	}
}

// TestNotAllowed: an annotation that the administrator does not allow is a fault, right or
// wrong, and its default counts; so does every other one.
func TestNotAllowed(t *testing.T) {
	svc := clusterService()
	svc.Annotations = map[string]string{AnnotationForwarding: "dsr", AnnotationAlgorithm: "maglev", "service.beeline.io/other": "x"}
	want := clusterModel()
	want.Algorithm = model.Maglev
	want.Faults = []model.Fault{{Setting: AnnotationForwarding, Reason: "not allowed by the administrator: allowedAnnotations"}}
	if got := Service(svc, Allowed{Annotations: DefaultAnnotations}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	slice := plainSlice()
	slice.Annotations = map[string]string{AnnotationWeight: "3"}
	if got := Slice(slice, nil); got.Weight != nil || len(got.Faults) != 1 || got.Faults[0].Setting != AnnotationWeight {
		t.Errorf("the slice has weight %v and faults %v", got.Weight, got.Faults)
	}
}
