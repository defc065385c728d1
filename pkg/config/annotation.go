package config

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/source/convert"
)

// noAnnotations, alone in allowedAnnotations, lets none count.
const noAnnotations = "none"

// externalIPsFeature is the feature without which kube-proxy serves no spec.externalIPs.
const externalIPsFeature = "AllowServiceExternalIPs"

// setAllowed sets what Services may ask for.
func (s *Settings) setAllowed(annotations *field.Path) field.ErrorList {
	allowed, given := s.KubeProxy.FeatureGates[externalIPsFeature]
	s.Allowed.NoExternalIPs = given && !allowed
	return s.setAnnotations(annotations)
}

// setAnnotations sets which annotations count.
func (s *Settings) setAnnotations(path *field.Path) field.ErrorList {
	list := s.Beeline.AllowedAnnotations
	if slices.Equal(list, []string{noAnnotations}) {
		return nil
	}
	var errs field.ErrorList
	for i, name := range list {
		if !slices.Contains(convert.AllAnnotations, name) {
			errs = append(errs, field.NotSupported(path.Index(i), name, append(slices.Clone(convert.AllAnnotations), noAnnotations+", alone")))
		}
	}
	s.Allowed.Annotations = list
	return errs
}
