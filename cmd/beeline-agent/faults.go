package main

import (
	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/metrics"
	"github.com/beeline-lb/beeline/pkg/model"
)

// tellFaults returns what logs and counts the settings of Services that are wrong, and
// makes an event on the Service of each. record is set once the source is known.
func tellFaults(faults *metrics.Faults, record *event.Recorder) func(model.Name, []model.Fault) {
	return func(service model.Name, list []model.Fault) {
		faults.Observe(service, list)
		for _, f := range list {
			(*record)(event.Event{
				Service: service,
				Type:    event.Warning,
				Reason:  event.InvalidSetting,
				Action:  "ReadAnnotations",
				Note:    f.String() + "; the default counts",
			})
		}
	}
}
