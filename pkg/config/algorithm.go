package config

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/model"
)

// setAlgorithm sets the algorithm of the Services that name none: what Beeline's part
// says, else IPVS' scheduler where Beeline has the same.
func (s *Settings) setAlgorithm(beeline *field.Path) field.ErrorList {
	if name := s.Beeline.Algorithm; name != "" {
		algorithm, err := model.ParseAlgorithm(name)
		if err != nil {
			return field.ErrorList{field.NotSupported(beeline.Child("algorithm"), name, model.Algorithms())}
		}
		s.Algorithm = algorithm
		return nil
	}
	s.Algorithm = model.Random
	if algorithm, ok := scheduled(s.KubeProxy.IPVS.Scheduler); ok {
		s.Algorithm = algorithm
	}
	return nil
}

// scheduled returns the algorithm that IPVS knows by that name. Not all are IPVS's.
func scheduled(scheduler string) (model.Algorithm, bool) {
	switch scheduler {
	case "mh":
		return model.Maglev, true
	case model.Random.String(), model.Maglev.String(), model.EWMA.String():
		return 0, false
	}
	algorithm, err := model.ParseAlgorithm(scheduler)
	return algorithm, err == nil
}
