package main

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/metrics"
	"github.com/beeline-lb/beeline/pkg/model"
)

func TestFaultEvents(t *testing.T) {
	var got []event.Event
	known := true
	record := func(e event.Event) { got = append(got, e) }
	tell := reportFaults(metrics.NewFaults(prometheus.NewRegistry()), record, func() bool { return known })
	web := model.Name{Namespace: "shop", Name: "web"}
	tell(web, []model.Fault{{Setting: "service.beeline.io/algorithm", Reason: "told by the former agent"}})
	known = false
	tell(web, []model.Fault{{Object: "EndpointSlice web-1", Setting: "service.beeline.io/weight", Reason: `"x" is no number from 0 to 255`}})
	tell(web, nil)
	want := []event.Event{{
		Service: web, Type: event.Warning, Reason: "InvalidSetting", Action: "ReadAnnotations",
		Fault: `EndpointSlice web-1: annotation service.beeline.io/weight: "x" is no number from 0 to 255`,
		Note:  `EndpointSlice web-1: annotation service.beeline.io/weight: "x" is no number from 0 to 255; the default counts`,
	}}
	if !slices.Equal(got, want) {
		t.Errorf("events %+v, want %+v", got, want)
	}
}
