package config

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source/convert"
)

// setOutliers sets the outlier detection of the Services that name none.
func (s *Settings) setOutliers(path *field.Path) field.ErrorList {
	o, err := model.ParseOutliers(s.Beeline.OutlierDetection)
	if err != nil {
		return field.ErrorList{field.Invalid(path, s.Beeline.OutlierDetection, err.Error())}
	}
	s.Outliers = o
	return nil
}

// MayEject reports whether a Service may have outlier detection: connect() of TCP is followed for it.
func (s *Settings) MayEject() bool {
	return s.Outliers.Used() || slices.Contains(s.Allowed.Annotations, convert.AnnotationOutlierDetection)
}
