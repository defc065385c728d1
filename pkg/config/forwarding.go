package config

import (
	"math"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/model"
)

// MasqueradesAll is why packets cannot go in a tunnel with masqueradeAll.
const MasqueradesAll = "cannot be combined with masqueradeAll: it hides the client, whom an endpoint on another node is to answer itself"

// setForwarding sets how packets reach backends on other nodes.
func (s *Settings) setForwarding(beeline *field.Path) field.ErrorList {
	b := &s.Beeline
	var errs field.ErrorList
	s.Forwarding = model.SNAT
	if name := b.ForwardingMode; name != "" {
		mode, err := model.ParseForwarding(name)
		switch {
		case err != nil:
			errs = append(errs, field.NotSupported(beeline.Child("forwardingMode"), name, model.Forwardings()))
		case mode.Tunnels() && s.MasqueradeAll:
			errs = append(errs, field.Invalid(beeline.Child("forwardingMode"), name, MasqueradesAll))
		default:
			s.Forwarding = mode
		}
	}
	if port := *b.DSRPort; port < 0 || port > math.MaxUint16 {
		errs = append(errs, field.Invalid(beeline.Child("dsrPort"), port, "must be a port from 1 to 65535, or 0 to take no part in the tunnel"))
	} else {
		s.TunnelPort = uint16(port)
	}
	return errs
}
