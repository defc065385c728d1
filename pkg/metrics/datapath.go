package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// Datapath collects the counters of the programs from the maps; those of Services: [Services].
type Datapath struct {
	maps      *bpfmap.Maps
	reasons   *prometheus.Desc
	nodes     *prometheus.Desc
	exhausted *prometheus.Desc
}

// NewDatapath returns a collector over the maps.
func NewDatapath(maps *bpfmap.Maps) *Datapath {
	return &Datapath{
		maps: maps,
		reasons: prometheus.NewDesc("beeline_datapath_events_total",
			"Connections and packets by their outcome: refused, dropped, served, passed.", []string{"reason", "effect"}, nil),
		nodes: prometheus.NewDesc("beeline_nodes",
			"Other nodes of the cluster by what they have answered; tunnel traffic goes to those that accept it. None while no Service asks for direct server return.", []string{"answer"}, nil),
		exhausted: prometheus.NewDesc("beeline_source_ports_exhausted_total",
			"Connections to the endpoint on another node that were dropped because all source ports of this node towards it were in use.",
			[]string{"namespace", "service", "endpoint", "protocol"}, nil),
	}
}

// Describe implements [prometheus.Collector].
func (d *Datapath) Describe(ch chan<- *prometheus.Desc) {
	ch <- d.reasons
	ch <- d.nodes
	ch <- d.exhausted
}

// Collect implements [prometheus.Collector].
func (d *Datapath) Collect(ch chan<- prometheus.Metric) {
	reasons, err := statusmap.New(d.maps).Reasons()
	if err != nil {
		klog.ErrorS(err, "Counters of the datapath could not be read")
	}
	for _, r := range reasons {
		ch <- prometheus.MustNewConstMetric(d.reasons, prometheus.CounterValue, float64(r.Count), r.Name, string(r.Effect))
	}
	d.collectNodes(ch)
	d.collectExhausted(ch)
}

func (d *Datapath) collectExhausted(ch chan<- prometheus.Metric) {
	list, err := flowmap.New(d.maps).Exhausted()
	if err != nil {
		klog.ErrorS(err, "Endpoints without free source ports could not be read")
		return
	}
	if len(list) == 0 {
		return
	}
	names := servicemap.New(d.maps).ServiceNames()
	for _, x := range list {
		var service model.Name
		if name, ok := names[x.Service]; ok && x.Known {
			service = name.Port.Service
		}
		ch <- prometheus.MustNewConstMetric(d.exhausted, prometheus.CounterValue, float64(x.Count),
			service.Namespace, service.Name, x.Backend.String(), x.Protocol.String())
	}
}

func (d *Datapath) collectNodes(ch chan<- prometheus.Metric) {
	nodes, err := nodemap.New(d.maps).List()
	if err != nil {
		klog.ErrorS(err, "Nodes could not be read")
		return
	}
	count := make(map[nodemap.Answer]int)
	for _, n := range nodes {
		if !n.Self {
			count[n.Answer]++
		}
	}
	for answer := nodemap.NotAsked; answer <= nodemap.Unreachable; answer++ {
		ch <- prometheus.MustNewConstMetric(d.nodes, prometheus.GaugeValue, float64(count[answer]), strings.ReplaceAll(answer.String(), " ", "_"))
	}
}
