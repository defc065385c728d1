package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// trafficDescs describe the packets and bytes of a Service port, or of one of its backends.
type trafficDescs struct{ packets, bytes *prometheus.Desc }

// newTrafficDescs returns those of series with these labels and the direction.
func newTrafficDescs(subject, words string, labels []string) trafficDescs {
	labels = append(slices.Clone(labels), "direction")
	const counted = ": of clients outside of the node estimated from one flow in as many as trafficSampling says, of the node's own TCP sockets counted when a connection ends. Only of some: serviceMetrics."
	return trafficDescs{
		packets: prometheus.NewDesc("beeline_"+subject+"_packets_total", "Packets of "+words+counted, labels, nil),
		bytes:   prometheus.NewDesc("beeline_"+subject+"_bytes_total", "Bytes, with IP headers, of packets of "+words+counted, labels, nil),
	}
}

func (d trafficDescs) describe(ch chan<- *prometheus.Desc) {
	ch <- d.packets
	ch <- d.bytes
}

// collect sends the series of what has these values of the labels.
func (d trafficDescs) collect(ch chan<- prometheus.Metric, t statusmap.Traffic, values []string) {
	for direction, v := range map[string]statusmap.Volume{"to_backend": t.ToBackend, "to_client": t.ToClient} {
		values := append(slices.Clone(values), direction)
		ch <- prometheus.MustNewConstMetric(d.packets, prometheus.CounterValue, float64(v.Packets), values...)
		ch <- prometheus.MustNewConstMetric(d.bytes, prometheus.CounterValue, float64(v.Bytes), values...)
	}
}
