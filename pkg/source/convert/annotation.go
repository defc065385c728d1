package convert

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/beeline-lb/beeline/pkg/maglev"
	"github.com/beeline-lb/beeline/pkg/model"
)

// The annotations that are read. Others are ignored.
const (
	// AnnotationAlgorithm, of a Service, is one of [model.Algorithms].
	AnnotationAlgorithm = model.AnnotationAlgorithm
	// AnnotationRingSize, of a Service, is one of [maglev.Sizes].
	AnnotationRingSize = "service.beeline.io/maglev-size"
	// AnnotationZoneWeights, of a Service, is a list such as "zone-a=3,zone-b=1".
	AnnotationZoneWeights = "service.beeline.io/zone-weights"
	// AnnotationSlowStart, of a Service, is a duration, see [model.ParseSlowStart].
	AnnotationSlowStart = model.AnnotationSlowStart
	// AnnotationSpillOver, of a Service, is a percentage, see [model.ParseSpillOver].
	AnnotationSpillOver = model.AnnotationSpillOver
	// AnnotationOutlierDetection, of a Service, is read by [model.ParseOutliers].
	AnnotationOutlierDetection = model.AnnotationOutlierDetection
	// AnnotationForwarding, of a Service, is one of [model.Forwardings].
	AnnotationForwarding = model.AnnotationForwarding
	// AnnotationWeight, of an EndpointSlice, is a number from 0 to 255.
	AnnotationWeight = "service.beeline.io/weight"
)

// Annotations are the annotations that are read; the operator of the cluster or the machine
// decides about them. Others of Beeline's are faults of their objects.
type Annotations []string

// Allowed is what the operator of the cluster or the machine lets Services ask for.
type Allowed struct {
	Annotations Annotations
	// NoExternalIPs leaves spec.externalIPs unserved.
	NoExternalIPs bool
}

// AllAnnotations are those that there are.
var AllAnnotations = Annotations{
	AnnotationAlgorithm, AnnotationRingSize, AnnotationZoneWeights, AnnotationSlowStart, AnnotationWeight, AnnotationForwarding,
	AnnotationOutlierDetection, AnnotationSpillOver,
}

// DefaultAnnotations are those that count unless others are given: what they set concerns the
// Service's own connections. A forwarding mode opens the tunnel's port on each node and makes
// its agent follow all Nodes, as zone spill-over does; for outlier detection a program runs at each
// connect() of TCP.
var DefaultAnnotations = Annotations{
	AnnotationAlgorithm, AnnotationRingSize, AnnotationZoneWeights, AnnotationSlowStart, AnnotationWeight,
}

// annotations reads the annotations of one object and notes what is wrong.
type annotations struct {
	allowed Annotations
	values  map[string]string
	object  string // as in [model.Fault]
	faults  []model.Fault
}

// notAllowed is the reason of the fault of an annotation that does not count.
const notAllowed = "not allowed by the administrator: allowedAnnotations"

// read sets a field to what an annotation says that is there; an error is noted.
func read[T any](a *annotations, key string, field *T, parse func(value string) (T, error)) {
	text, ok := a.values[key]
	if !ok {
		return
	}
	if !slices.Contains(a.allowed, key) {
		a.faults = append(a.faults, model.Fault{Object: a.object, Setting: key, Reason: notAllowed})
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
func annotateService(svc *model.Service, values map[string]string, allowed Annotations) {
	a := annotations{allowed: allowed, values: values}
	read(&a, AnnotationAlgorithm, &svc.Algorithm, model.ParseAlgorithm)
	read(&a, AnnotationRingSize, &svc.RingSize, ringSize)
	read(&a, AnnotationZoneWeights, &svc.ZoneWeights, zoneWeights)
	read(&a, AnnotationSlowStart, &svc.SlowStart, model.ParseSlowStart)
	read(&a, AnnotationSpillOver, &svc.SpillOver, model.ParseSpillOver)
	read(&a, AnnotationForwarding, &svc.Forwarding, model.ParseForwarding)
	read(&a, AnnotationOutlierDetection, &svc.Outliers, func(value string) (*model.Outliers, error) {
		o, err := model.ParseOutliers(value)
		return &o, err
	})
	svc.Faults = a.faults
}

// annotateSlice sets what the annotations of an EndpointSlice say.
func annotateSlice(slice *model.Slice, values map[string]string, allowed Annotations) {
	a := annotations{allowed: allowed, values: values, object: "EndpointSlice " + slice.Name.Name}
	read(&a, AnnotationWeight, &slice.Weight, func(value string) (*uint8, error) {
		w, err := weight(value)
		return &w, err
	})
	slice.Faults = a.faults
}

func ringSize(value string) (uint32, error) {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%s is none of the ring sizes %v", model.Quote(value), maglev.Sizes)
	}
	if err := maglev.CheckSize(uint32(n)); err != nil {
		return 0, err
	}
	return uint32(n), nil
}

func weight(value string) (uint8, error) {
	n, err := strconv.ParseUint(value, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("%s is no number from 0 to %d", model.Quote(value), math.MaxUint8)
	}
	return uint8(n), nil
}

// maxZoneWeights is how many zones a Service may weigh: every node keeps them.
const maxZoneWeights = 128

// zoneWeights parses "zone-a=3,zone-b=1". It is taken whole or not at all.
func zoneWeights(value string) (map[string]uint8, error) {
	if zones := strings.Count(value, ",") + 1; zones > maxZoneWeights {
		return nil, fmt.Errorf("weights of %d zones, want %d at most", zones, maxZoneWeights)
	}
	weights := make(map[string]uint8)
	for part := range strings.SplitSeq(value, ",") {
		zone, number, ok := strings.Cut(part, "=")
		zone = strings.TrimSpace(zone)
		if !ok || zone == "" {
			return nil, fmt.Errorf("%s is no weight of a zone such as zone-a=3", model.Quote(strings.TrimSpace(part)))
		}
		if len(zone) > maxName {
			return nil, fmt.Errorf("zone %s is longer than %d characters", model.Quote(zone), maxName)
		}
		if _, twice := weights[zone]; twice {
			return nil, fmt.Errorf("zone %s has two weights", model.Quote(zone))
		}
		w, err := weight(strings.TrimSpace(number))
		if err != nil {
			return nil, fmt.Errorf("zone %s: %w", model.Quote(zone), err)
		}
		weights[strings.Clone(zone)] = w // else it keeps the whole text in memory
	}
	return weights, nil
}
