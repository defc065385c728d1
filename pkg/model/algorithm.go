package model

import "fmt"

// AnnotationAlgorithm is the annotation that a Service names its [Algorithm] by.
const AnnotationAlgorithm = "service.beeline.io/algorithm"

// Algorithm is how the backend of a new connection is chosen.
type Algorithm uint8

// The algorithms. All but [RoundRobin] and [LeastConn] use the weights of the endpoints;
// weight 0 gets no new connection with any of them.
const (
	// DefaultAlgorithm leaves the choice to the agent's configuration.
	DefaultAlgorithm Algorithm = iota
	// Random spreads evenly in no order that can be told ahead.
	Random
	// RoundRobin takes one after the other.
	RoundRobin
	// WeightedRoundRobin takes one after the other, each as often as it has weight,
	// and spreads the turns of each over the cycle.
	WeightedRoundRobin
	// SourceHash hashes the client's address.
	SourceHash
	// DestinationHash hashes the address that the client connects to.
	DestinationHash
	// Maglev hashes addresses and ports of client and Service, on every node alike.
	Maglev
	// LeastConn takes the endpoint with the fewest active connections.
	LeastConn
	// WeightedLeastConn takes the one with the fewest for its weight.
	WeightedLeastConn
	// ShortestDelay takes the one that will have the fewest for its weight.
	ShortestDelay
	// NeverQueue selects one without an active connection, else as [ShortestDelay] does.
	NeverQueue
	// Locality stays with one endpoint until it is overloaded.
	Locality
	// LocalityReplicated stays with several, which become more when they are overloaded, and
	// less with time.
	LocalityReplicated
	// EWMA takes of two endpoints the one with the lower round-trip time, times its active
	// connections. The time is an exponentially weighted moving average.
	EWMA
	// CountedRandom is [Random] of Services whose active connections are counted for zone
	// spill-over. It has no name of its own, and none asks for it.
	CountedRandom
)

// algorithmNames are those of IPVS where it has the algorithm.
var algorithmNames = names[Algorithm]{
	Random:             "random",
	RoundRobin:         "rr",
	WeightedRoundRobin: "wrr",
	SourceHash:         "sh",
	DestinationHash:    "dh",
	Maglev:             "maglev",
	LeastConn:          "lc",
	WeightedLeastConn:  "wlc",
	ShortestDelay:      "sed",
	NeverQueue:         "nq",
	Locality:           "lblc",
	LocalityReplicated: "lblcr",
	EWMA:               "ewma",
}

// String returns the name that [ParseAlgorithm] reads; "" for [DefaultAlgorithm].
func (a Algorithm) String() string {
	if a == CountedRandom {
		a = Random
	}
	return algorithmNames.of(a)
}

// Algorithms returns the names of the algorithms.
func Algorithms() []string { return algorithmNames.all() }

// ParseAlgorithm returns the algorithm of a name.
func ParseAlgorithm(name string) (Algorithm, error) { return algorithmNames.parse(name) }

// Hashes reports whether the algorithm sends equal clients to equal backends.
func (a Algorithm) Hashes() bool {
	return a == SourceHash || a == DestinationHash || a == Maglev
}

// Weighs reports whether the algorithm wants an endpoint in its set as often as it has weight.
func (a Algorithm) Weighs() bool { return a != RoundRobin && (!a.Counts() || a == CountedRandom) }

// Localizes reports whether the algorithm stays with some endpoints until they are overloaded.
func (a Algorithm) Localizes() bool { return a == Locality || a == LocalityReplicated }

// StartsSlowly reports whether an endpoint's share of new connections follows its weight, and
// changing it moves no client to another endpoint.
func (a Algorithm) StartsSlowly() bool {
	return a.Weighs() && !a.Hashes() || a == WeightedLeastConn || a == ShortestDelay || a == NeverQueue ||
		a == EWMA
}

// Counts reports whether the algorithm counts the active connections of each endpoint.
func (a Algorithm) Counts() bool { return a >= LeastConn && a <= CountedRandom }

// Fault is a setting of a Service, or of one of its slices, that cannot be used as it is.
type Fault struct {
	// Object is the kind and name of a slice; "" is the Service itself.
	Object string
	// Setting is the annotation; "" is none in particular.
	Setting string
	// Reason says what is wrong with the value and what is allowed.
	Reason string
	// Partly says that the setting counts in part, as Reason says; else the default does.
	Partly bool
}

// String returns "annotation x: reason".
func (f Fault) String() string {
	text := f.Reason
	if f.Setting != "" {
		text = fmt.Sprintf("annotation %s: %s", f.Setting, text)
	}
	if f.Object != "" {
		text = fmt.Sprintf("%s: %s", f.Object, text)
	}
	return text
}
