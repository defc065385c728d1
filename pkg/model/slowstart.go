package model

import (
	"fmt"
	"math"
	"time"
)

// AnnotationSlowStart is the annotation that a Service names its [Service.SlowStart] by.
const AnnotationSlowStart = "service.beeline.io/slow-start"

// FullShare is the share of new connections of an endpoint that has started: it gets there in so
// many steps.
const FullShare = 10

// The bounds of slow start: a step takes a second at least, for each is a change of the Service.
const (
	MinSlowStart = FullShare * time.Second
	MaxSlowStart = time.Hour
)

// ParseSlowStart returns the duration of a slow start, such as "30s".
func ParseSlowStart(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < MinSlowStart || d > MaxSlowStart {
		return 0, fmt.Errorf("%s is no duration from %s to %s, such as 30s", Quote(text), MinSlowStart, MaxSlowStart)
	}
	return d, nil
}

// StartScale returns how many times as large the weights of a Service with slow start are, of which
// this is the largest: as many as make a share of each a whole number, or 1 where that is too large.
func StartScale(largest uint16) uint16 {
	if largest > math.MaxUint16/FullShare {
		return 1
	}
	return FullShare
}

// StartWeight returns the weight of an endpoint with a share of its full one, 1 at least unless it
// has none.
func StartWeight(full, share, scale uint16) uint16 {
	return max(uint16(uint32(full)*uint32(scale)*uint32(share)/FullShare), min(full, 1))
}

// StartShare returns the share that an endpoint has by [StartWeight].
func StartShare(full, weight, scale uint16) uint16 {
	all := uint32(full) * uint32(scale)
	if uint32(weight) >= all {
		return FullShare
	}
	return uint16((uint32(weight)*FullShare + all - 1) / all)
}
