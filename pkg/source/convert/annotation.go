package convert

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/beeline-lb/beeline/pkg/maglev"
	"github.com/beeline-lb/beeline/pkg/model"
)

// The annotations that are read. Unknown ones are nobody's business.
const (
	// AnnotationAlgorithm, of a Service, is one of [model.Algorithms].
	AnnotationAlgorithm = "service.beeline.io/algorithm"
	// AnnotationRingSize, of a Service, is one of [maglev.Sizes].
	AnnotationRingSize = "service.beeline.io/maglev-size"
	// AnnotationZoneWeights, of a Service, is a list such as "zone-a=3,zone-b=1".
	AnnotationZoneWeights = "service.beeline.io/zone-weights"
	// AnnotationForwarding, of a Service, is one of [model.Forwardings].
	AnnotationForwarding = model.AnnotationForwarding
	// AnnotationWeight, of an EndpointSlice, is a number from 0 to 255.
	AnnotationWeight = "service.beeline.io/weight"
)

// annotations reads the annotations of one object and notes what is wrong.
type annotations struct {
	values map[string]string
	object string // as in [model.Fault]
	faults []model.Fault
}

// read sets a field to what an annotation says that is there; an error is noted.
func read[T any](a *annotations, key string, field *T, parse func(value string) (T, error)) {
	text, ok := a.values[key]
	if !ok {
		return
	}
	value, err := parse(strings.TrimSpace(text))
	if err != nil {
		a.faults = append(a.faults, model.Fault{Object: a.object, Setting: key, Reason: err.Error()})
		return
	}
	*field = value
}

// annotateService sets what the annotations of a Service say.
func annotateService(svc *model.Service, values map[string]string) {
	a := annotations{values: values}
	read(&a, AnnotationAlgorithm, &svc.Algorithm, model.ParseAlgorithm)
	read(&a, AnnotationRingSize, &svc.RingSize, ringSize)
	read(&a, AnnotationZoneWeights, &svc.ZoneWeights, zoneWeights)
	read(&a, AnnotationForwarding, &svc.Forwarding, model.ParseForwarding)
	svc.Faults = a.faults
}

// annotateSlice sets what the annotations of an EndpointSlice say.
func annotateSlice(slice *model.Slice, values map[string]string) {
	a := annotations{values: values, object: "EndpointSlice " + slice.Name.Name}
	read(&a, AnnotationWeight, &slice.Weight, func(value string) (*uint8, error) {
		w, err := weight(value)
		return &w, err
	})
	slice.Faults = a.faults
}

func ringSize(value string) (uint32, error) {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is none of the ring sizes %v", value, maglev.Sizes)
	}
	if err := maglev.CheckSize(uint32(n)); err != nil {
		return 0, err
	}
	return uint32(n), nil
}

func weight(value string) (uint8, error) {
	n, err := strconv.ParseUint(value, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("%q is no number from 0 to %d", value, math.MaxUint8)
	}
	return uint8(n), nil
}

// zoneWeights parses "zone-a=3,zone-b=1". It is taken whole or not at all.
func zoneWeights(value string) (map[string]uint8, error) {
	weights := make(map[string]uint8)
	for part := range strings.SplitSeq(value, ",") {
		zone, number, ok := strings.Cut(part, "=")
		zone = strings.TrimSpace(zone)
		if !ok || zone == "" {
			return nil, fmt.Errorf("%q is no weight of a zone such as zone-a=3", strings.TrimSpace(part))
		}
		if _, twice := weights[zone]; twice {
			return nil, fmt.Errorf("zone %q has two weights", zone)
		}
		w, err := weight(strings.TrimSpace(number))
		if err != nil {
			return nil, fmt.Errorf("zone %q: %w", zone, err)
		}
		weights[zone] = w
	}
	return weights, nil
}
