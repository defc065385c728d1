package main

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/metrics"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
)

func TestFaultEvents(t *testing.T) {
	var got []event.Event
	known := true
	record := func(e event.Event) { got = append(got, e) }
	tell := reportFaults(metrics.NewFaults(prometheus.NewRegistry()), record, func() bool { return known })
	web := model.Name{Namespace: "shop", Name: "web"}
	former := []model.Fault{{Setting: "service.beeline.io/algorithm", Reason: "told by the former agent"}}
	tell(web, former, former)
	known = false
	added := []model.Fault{{Object: "EndpointSlice web-1", Setting: "service.beeline.io/weight", Reason: `"x" is no number from 0 to 255`}}
	tell(web, append(former, added...), added)
	tell(web, former, nil)
	tell(web, nil, nil)
	want := []event.Event{{
		Service: web, Type: event.Warning, Reason: "InvalidSetting", Action: "ReadAnnotations",
		Fault:   `EndpointSlice web-1: annotation service.beeline.io/weight: "x" is no number from 0 to 255`,
		Subject: "EndpointSlice web-1 service.beeline.io/weight 1",
		Note:    `EndpointSlice web-1: annotation service.beeline.io/weight: "x" is no number from 0 to 255; the default counts`,
	}}
	if !slices.Equal(got, want) {
		t.Errorf("events %+v, want %+v", got, want)
	}
}

// TestManyFaultEvents: of many faults that come at once the first are events.
func TestManyFaultEvents(t *testing.T) {
	var got []string
	tell := reportFaults(metrics.NewFaults(prometheus.NewRegistry()), func(e event.Event) { got = append(got, e.Fault) }, func() bool { return false })
	var list []model.Fault
	var want []string
	for i := range 5000 {
		f := model.Fault{Object: fmt.Sprint("EndpointSlice web-", i), Setting: "service.beeline.io/weight", Reason: "wrong"}
		list, want = append(list, f), append(want, f.String())
	}
	tell(model.Name{Namespace: "shop", Name: "web"}, list, list)
	if !slices.Equal(got, want[:maxFaults]) {
		t.Errorf("%d events: %v", len(got), got)
	}
}

// TestEjectionEvents: what fails at a port is one event, whichever endpoint it is.
func TestEjectionEvents(t *testing.T) {
	var got []event.Event
	tell := reportEjections(func(e event.Event) { got = append(got, e) })
	port := model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Port: "http", Protocol: model.TCP}
	var want []event.Event
	for _, endpoint := range []string{"10.0.0.1:8080", "[fd00::1]:8080"} {
		tell(reconcile.Ejection{Port: port, Endpoint: netip.MustParseAddrPort(endpoint), Failures: 5, Pause: 30 * time.Second})
		tell(reconcile.Ejection{Port: port, Endpoint: netip.MustParseAddrPort(endpoint)}) // let in again
		want = append(want, event.Event{
			Service: port.Service, Type: event.Warning, Reason: "EndpointEjected", Action: "Eject", Fault: "shop/web:http/TCP",
			Note: "connections to endpoint " + endpoint + " of shop/web:http/TCP fail: it gets none for 30s",
		})
	}
	if !slices.Equal(got, want) {
		t.Errorf("events %+v, want %+v", got, want)
	}
}
