package inspect

// TopDetail is how much of a [Top] is told.
type TopDetail string

// The details.
const (
	DetailBackends TopDetail = "backends" // all
	DetailServices TopDetail = "services" // Services without their ports
	DetailNode     TopDetail = "node"     // the sums of all Services
)

// TopDetails are all details.
var TopDetails = []TopDetail{DetailBackends, DetailServices, DetailNode}

// TopNode are the sums of a node.
type TopNode struct {
	Rates
	Services int `json:"services"` // how many there are
}

// Keep leaves out what a detail does not have.
func (t *Top) Keep(detail TopDetail) {
	if detail != DetailBackends {
		t.New = nil
	}
	switch detail {
	case DetailServices:
		for i := range t.Services {
			s := &t.Services[i]
			counts := s.countBackends()
			s.BackendCounts, s.Ports = &counts, nil
		}
	case DetailNode:
		node := t.Node()
		t.Sums, t.Services = &node, []TopService{}
	}
}

// Node returns the sums of a node, of any detail.
func (t *Top) Node() TopNode {
	if t.Sums != nil {
		return *t.Sums
	}
	return TopNode{t.Sum(), len(t.Services)}
}
