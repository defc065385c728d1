package metrics

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Services collects the connections of all Services, and those of some Service ports.
//
// The kernel's counters of a Service port begin anew when its id goes to another one; the sum
// grows by what each has counted since the last collection.
type Services struct {
	maps     *bpfmap.Maps
	limit    int
	names    []model.Name
	backends *Backends

	all         *prometheus.Desc
	connections *prometheus.Desc
	refused     *prometheus.Desc
	dropped     *prometheus.Desc
	traffic     trafficDescs

	mu    sync.Mutex
	seen  []uint64 // connections by Service id, as of the last collection
	total uint64
}

// serviceLabels are the labels of a Service port, one for each IP family.
var serviceLabels = []string{"namespace", "service", "port", "protocol", "ip_family"}

func serviceValues(name tables.ServiceName) []string {
	return []string{
		name.Port.Service.Namespace, name.Port.Service.Name, name.Port.Port,
		name.Port.Protocol.String(), name.Family.String(),
	}
}

// NewServices returns a collector. Up to limit Service ports, each IP family counted, have metrics
// of their own: those of the Services named, then those with the most connections; and of these some
// backends.
func NewServices(maps *bpfmap.Maps, limit int, names []model.Name, backends *Backends) *Services {
	return &Services{
		maps: maps, limit: limit, names: names, backends: backends,
		all: prometheus.NewDesc("beeline_connections_total",
			"Connections and UDP peers of all Services for which a backend was selected.", nil, nil),
		connections: prometheus.NewDesc("beeline_service_connections_total",
			"Connections and UDP peers for which a backend of the Service port was selected. Only of some: serviceMetrics.", serviceLabels, nil),
		refused: prometheus.NewDesc("beeline_service_refused_total",
			"Connections to the Service port that were refused or dropped. Only of some: serviceMetrics.", serviceLabels, nil),
		dropped: prometheus.NewDesc("beeline_service_dropped_total",
			"Those of beeline_service_refused_total of which the client was told nothing. Only of some: serviceMetrics.", serviceLabels, nil),
		traffic: newTrafficDescs("service", "the Service port", serviceLabels),
	}
}

// Describe implements [prometheus.Collector].
func (s *Services) Describe(ch chan<- *prometheus.Desc) {
	ch <- s.all
	ch <- s.connections
	ch <- s.refused
	ch <- s.dropped
	s.traffic.describe(ch)
	ch <- s.backends.connections
	s.backends.traffic.describe(ch)
}

// Collect implements [prometheus.Collector].
func (s *Services) Collect(ch chan<- prometheus.Metric) {
	names := servicemap.New(s.maps).ServiceNames()
	end := uint32(0)
	for id := range names {
		end = max(end, id+1)
	}
	stats, err := statusmap.New(s.maps).ServiceStats(end)
	if err != nil {
		klog.ErrorS(err, "Counters of Services could not be read")
		return
	}
	ch <- prometheus.MustNewConstMetric(s.all, prometheus.CounterValue, float64(s.sum(stats)))
	chosen := s.chosen(names, stats)
	if len(chosen) == 0 {
		return
	}
	traffic, err := statusmap.New(s.maps).Traffic()
	if err != nil {
		klog.ErrorS(err, "Traffic of Services could not be read")
	}
	for _, id := range chosen {
		values := serviceValues(names[id])
		ch <- prometheus.MustNewConstMetric(s.connections, prometheus.CounterValue, float64(stats[id].Connections), values...)
		ch <- prometheus.MustNewConstMetric(s.refused, prometheus.CounterValue, float64(stats[id].Refused), values...)
		ch <- prometheus.MustNewConstMetric(s.dropped, prometheus.CounterValue, float64(stats[id].Dropped), values...)
		if traffic != nil {
			s.traffic.collect(ch, traffic.Services[id], values)
		}
	}
	s.backends.collect(ch, names, chosen, traffic)
}

// sum returns the connections of all Services that were ever counted.
func (s *Services) sum(stats []statusmap.ServiceStat) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, stat := range stats {
		if id == len(s.seen) {
			s.seen = append(s.seen, 0)
		}
		if stat.Connections < s.seen[id] { // counted for another Service by now
			s.seen[id] = 0
		}
		s.total += stat.Connections - s.seen[id]
		s.seen[id] = stat.Connections
	}
	return s.total
}

// chosen returns the ids of the Service ports that have metrics of their own.
func (s *Services) chosen(names map[uint32]tables.ServiceName, stats []statusmap.ServiceStat) []uint32 {
	if s.limit == 0 {
		return nil
	}
	ids := slices.Collect(maps.Keys(names))
	rank := func(id uint32) (other int, count uint64) {
		if !slices.Contains(s.names, names[id].Port.Service) {
			other = 1
		}
		return other, stats[id].Connections + stats[id].Refused
	}
	slices.SortFunc(ids, func(a, b uint32) int {
		otherA, countA := rank(a)
		otherB, countB := rank(b)
		return cmp.Or(cmp.Compare(otherA, otherB), cmp.Compare(countB, countA),
			names[a].Port.Service.Compare(names[b].Port.Service), cmp.Compare(a, b))
	})
	return ids[:min(s.limit, len(ids))]
}
