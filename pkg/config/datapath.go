package config

import (
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/datapath"
)

// setDatapath sets what goes on at devices.
func (s *Settings) setDatapath(beeline *field.Path) field.ErrorList {
	b := &s.Beeline
	var errs field.ErrorList
	if err := datapath.CheckDevices(b.Devices); err != nil {
		errs = append(errs, field.Invalid(beeline.Child("devices"), b.Devices, err.Error()))
	}
	if err := datapath.CheckDevices(b.PodDevices); err != nil {
		errs = append(errs, field.Invalid(beeline.Child("podDevices"), b.PodDevices, err.Error()))
	}
	if modes := []SocketLB{SocketLBAll, SocketLBAuto, SocketLBHost}; !slices.Contains(modes, b.SocketLB) {
		errs = append(errs, field.NotSupported(beeline.Child("socketLB"), b.SocketLB, modes))
	}
	if mode := datapath.XDPMode(b.XDP); !slices.Contains(datapath.XDPModes, mode) {
		errs = append(errs, field.NotSupported(beeline.Child("xdp"), mode, datapath.XDPModes))
	}
	if b.AcceptForwarded != AcceptForwardedAuto && b.AcceptForwarded != AcceptForwardedNever {
		errs = append(errs, field.NotSupported(beeline.Child("acceptForwarded"), b.AcceptForwarded,
			[]AcceptForwarded{AcceptForwardedAuto, AcceptForwardedNever}))
	}
	s.AcceptForwarded = b.AcceptForwarded == AcceptForwardedAuto && b.Manifests == ""
	switch mode := datapath.TCMode(b.TCMode); mode {
	case datapath.TCAuto, datapath.TCX, datapath.TCClsact:
	default:
		errs = append(errs, field.NotSupported(beeline.Child("tcMode"), mode,
			[]datapath.TCMode{datapath.TCAuto, datapath.TCX, datapath.TCClsact}))
	}
	var ok bool
	if s.SNATPortMin, s.SNATPortMax, ok = portRange(b.SNATPortRange); !ok {
		errs = append(errs, field.Invalid(beeline.Child("snatPortRange"), b.SNATPortRange, "must be a range of ports such as 1024-65535"))
	}
	return errs
}

// portRange parses "1024-65535".
func portRange(s string) (first, last uint16, ok bool) {
	a, b, dash := strings.Cut(s, "-")
	low, errLow := strconv.ParseUint(a, 10, 16)
	high, errHigh := strconv.ParseUint(b, 10, 16)
	ok = dash && errLow == nil && errHigh == nil && low > 0 && low <= high
	return uint16(low), uint16(high), ok
}
