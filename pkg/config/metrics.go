package config

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/model"
)

// setServiceMetrics sets which Services have metrics of their own.
func (s *Settings) setServiceMetrics(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	m := s.Beeline.ServiceMetrics
	if (len(m.Services) > 0 || m.Backends > 0) && m.Limit == 0 {
		errs = append(errs, field.Required(path.Child("limit"), "how many Service ports may have metrics of their own"))
	}
	for i, text := range m.Services {
		namespace, name, ok := strings.Cut(text, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			errs = append(errs, field.Invalid(path.Child("services").Index(i), text, "want NAMESPACE/NAME"))
			continue
		}
		s.MetricServices = append(s.MetricServices, model.Name{Namespace: namespace, Name: name})
	}
	return errs
}
