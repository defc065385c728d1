package main

import (
	"fmt"
	"slices"

	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/metrics"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
)

// maxFaults is how many new faults of a Service are logged, and made events of, at one change: the first
// ones, which are the same on all nodes. A Service can have thousands of slices.
const maxFaults = 16

// reportFaults returns what logs and counts the settings of Services that are wrong, and
// makes an event on the Service of each that was not before.
//
// reported says whether a former agent of this version and configuration has made events about what is
// found now. So a restart makes no events.
func reportFaults(faults *metrics.Faults, record event.Recorder, reported func() bool) func(service model.Name, all, added []model.Fault) {
	return func(service model.Name, all, added []model.Fault) {
		first := added[:min(len(added), maxFaults)]
		faults.Observe(service, len(all), first, len(added)-len(first))
		if reported() {
			return
		}
		of := make(map[string]int) // faults by setting
		for _, f := range all {
			subject := ""
			if f.Setting != "" {
				subject = fmt.Sprint(f.Object, " ", f.Setting)
				of[subject]++
				subject = fmt.Sprint(subject, " ", of[subject])
			}
			if !slices.Contains(first, f) {
				continue
			}
			note := f.String()
			if !f.Partly {
				note += "; the default counts"
			}
			record(event.Event{
				Service: service,
				Type:    event.Warning,
				Reason:  event.InvalidSetting,
				Action:  "ReadAnnotations",
				Fault:   f.String(),
				Subject: subject,
				Note:    note,
			})
		}
	}
}

// reportEjections returns what makes an event on the Service of each endpoint that is ejected. It is one
// for all endpoints of a port: a tenant whose thousand endpoints fail makes no thousand requests of
// each node.
func reportEjections(record event.Recorder) func(reconcile.Ejection) {
	return func(e reconcile.Ejection) {
		if e.Pause == 0 {
			return
		}
		record(event.Event{
			Service: e.Port.Service,
			Type:    event.Warning,
			Reason:  event.EndpointEjected,
			Action:  "Eject",
			Fault:   e.Port.String(),
			Note:    fmt.Sprintf("connections to endpoint %s of %s fail: it gets none for %s", e.Endpoint, e.Port, e.Pause),
		})
	}
}
