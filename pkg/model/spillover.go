package model

import (
	"fmt"
	"strconv"
	"strings"
)

// AnnotationSpillOver is the annotation that a Service names its [SpillOver] by.
const AnnotationSpillOver = "service.beeline.io/zone-spill-over"

// SpillOver is when new connections leave the zone that topology hints keep them in: when the
// endpoints of the zone would have more than their share of the Service's active connections.
type SpillOver struct {
	// Used says that they do at all.
	Used bool
	// Above is how much more than their share the endpoints of a zone may have, in percent.
	Above uint16
}

// MaxSpillOvers is how many Services may have zone spill-over, the first by name: so many fit into one
// question to another node.
const MaxSpillOvers = 96

// maxSpillOver is eleven times the share.
const maxSpillOver = 1000

// ParseSpillOver returns the spill-over that a percentage such as "20%" is.
func ParseSpillOver(text string) (SpillOver, error) {
	number, percent := strings.CutSuffix(text, "%")
	above, err := strconv.ParseUint(number, 10, 16)
	if !percent || err != nil || above > maxSpillOver {
		return SpillOver{}, fmt.Errorf("%s is no percentage from 0%% to %d%%, such as 20%%", Quote(text), maxSpillOver)
	}
	return SpillOver{Used: true, Above: uint16(above)}, nil
}

// SpillParts is what the shares of zones add up to, that of the node's own zone among them.
const SpillParts = 20
