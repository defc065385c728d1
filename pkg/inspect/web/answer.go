package web

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
)

// How many entries of each list an answer has.
const (
	mostRows     = 25 // Services
	mostPorts    = 8  // of the chosen Service
	mostBackends = 20 // of each of its ports
	mostBusy     = 10 // backends of all Services
	mostRefused  = 20 // Service ports
	mostEvents   = 20
	mostMaps     = 6
)

// question is what the page wants to see of a reading.
type question struct {
	order   inspect.TopOrder
	filter  string     // Services whose name contains it
	offset  int        // the first of them
	service model.Name // the chosen one; the zero value: none
}

func parseQuestion(values url.Values) (q question, err error) {
	q = question{order: inspect.TopOrder(cmp.Or(values.Get("sort"), string(inspect.ByConnections))), filter: values.Get("filter")}
	if !slices.Contains(inspect.TopOrders, q.order) {
		return q, fmt.Errorf("sort must be one of %v", inspect.TopOrders)
	}
	if q.offset, err = strconv.Atoi(cmp.Or(values.Get("offset"), "0")); err != nil || q.offset < 0 {
		return q, fmt.Errorf("offset must be a number from 0")
	}
	if service := values.Get("service"); service != "" {
		var found bool
		if q.service.Namespace, q.service.Name, found = strings.Cut(service, "/"); !found {
			return q, fmt.Errorf("service must be namespace/name")
		}
	}
	return q, nil
}

// answer is what the page shows.
type answer struct {
	Time            time.Time     `json:"time"`            // of the reading
	Seconds         float64       `json:"seconds"`         // what its rates are of; 0: none is known yet
	IntervalSeconds float64       `json:"intervalSeconds"` // how long the page is to wait
	Agent           inspect.Agent `json:"agent"`

	Sum              inspect.Rates `json:"sum"`
	Services         int           `json:"services"` // all
	EvictedPerSecond float64       `json:"evictedPerSecond"`
	History          []point       `json:"history"` // oldest first

	Matching int     `json:"matching"` // Services that the filter lets pass
	Offset   int     `json:"offset"`   // of Rows among them
	PageSize int     `json:"pageSize"`
	Rows     []row   `json:"rows"`
	Chosen   *chosen `json:"chosen,omitempty"`

	Traffic  traffic     `json:"traffic"`
	Refusals refusedView `json:"refusals"`
	Maps     []mapFill   `json:"maps"` // the fullest
}

// mapFill is a map with the part of it that is used, 0 to 1.
type mapFill struct {
	inspect.Map
	Fill float64 `json:"fill"`
}

// row is a Service in the list.
type row struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	inspect.Rates
	Backends int `json:"backends"`
	// History are connections a second, beside those of the node; absent: there were none.
	History []float32 `json:"history,omitempty"`
}

// chosen is the Service that the page shows in full.
type chosen struct {
	row
	Served         bool         `json:"served"`
	RefusedHistory []float32    `json:"refusedHistory,omitempty"`
	Ports          []chosenPort `json:"ports"`
	MorePorts      int          `json:"morePorts"`
}

// chosenPort is a port of it with those of its backends that have most connections.
type chosenPort struct {
	inspect.TopPort
	MoreBackends int `json:"moreBackends"`
}

// view answers a question about the latest reading.
func (r *reader) view(q question) *answer {
	a := &answer{
		Time: r.top.Time, Seconds: r.top.Seconds, IntervalSeconds: r.options.Interval.Seconds(), Agent: r.top.Agent,
		Sum: r.top.Sum(), Services: len(r.top.Services), EvictedPerSecond: r.top.EvictedPerSecond,
		History: append([]point{}, r.history.node...),
		Rows:    []row{}, PageSize: mostRows,
		Traffic: r.traffic, Refusals: r.refusals.view(), Maps: []mapFill{},
	}
	a.Refusals.Events, a.Refusals.NotHeard = r.events.view()
	for _, m := range inspect.FullestMaps(r.top.Maps, mostMaps) {
		a.Maps = append(a.Maps, mapFill{m, m.Fill()})
	}
	services := r.top.Matching(q.filter, q.order)
	a.Matching = len(services)
	if q.offset < a.Matching {
		a.Offset = q.offset
	}
	rows, _ := first(services[a.Offset:], mostRows)
	for i := range rows {
		a.Rows = append(a.Rows, r.row(&rows[i]))
	}
	if q.service != (model.Name{}) {
		a.Chosen = r.choose(q.service)
	}
	return a
}

func (r *reader) row(s *inspect.TopService) row {
	connections, _ := r.history.of(s.FullName())
	return row{s.Namespace, s.Name, s.Rates, s.BackendCount(), connections}
}

// choose returns a Service in full.
func (r *reader) choose(name model.Name) *chosen {
	c := &chosen{row: row{Namespace: name.Namespace, Name: name.Name}, Ports: []chosenPort{}}
	at := inspect.IndexOfService(r.top.Services, name)
	if at < 0 {
		return c
	}
	service := &r.top.Services[at]
	c.row, c.Served = r.row(service), true
	_, c.RefusedHistory = r.history.of(name)
	var ports []inspect.TopPort
	ports, c.MorePorts = first(service.Ports, mostPorts)
	for _, p := range ports {
		backends := slices.Clone(p.Backends)
		slices.SortStableFunc(backends, func(a, b inspect.TopBackend) int {
			return cmp.Or(cmp.Compare(b.Connections, a.Connections), cmp.Compare(b.NewCount(), a.NewCount()))
		})
		port := chosenPort{TopPort: p}
		port.Backends, port.MoreBackends = first(backends, mostBackends)
		c.Ports = append(c.Ports, port)
	}
	return c
}

// first returns up to n items, and how many more there are.
func first[T any](items []T, n int) (list []T, more int) {
	n = min(n, len(items))
	return items[:n], len(items) - n
}
