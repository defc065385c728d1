package config

import (
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/source/convert"
)

// setSpillOver sets the port at which agents ask each other for active connections, after the tunnel's and
// the annotations.
func (s *Settings) setSpillOver(path *field.Path) field.ErrorList {
	switch port := s.Beeline.ZoneSpillOverPort; {
	case port < 1 || port > math.MaxUint16:
		return field.ErrorList{field.Invalid(path, port, "must be a port from 1 to 65535")}
	case port == int32(s.TunnelPort) && slices.Contains(s.Allowed.Annotations, convert.AnnotationSpillOver):
		return field.ErrorList{field.Invalid(path, port, "must be another port than dsrPort")}
	default:
		s.SpillOverPort = uint16(port)
		return nil
	}
}
