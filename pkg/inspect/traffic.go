package inspect

import (
	"cmp"

	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// TrafficRates are packets and bytes: of clients outside of this node estimated from one flow in as
// many as trafficSampling says, of its own TCP sockets counted when a connection ends.
type TrafficRates struct {
	ToBackend VolumeRates `json:"toBackend"`
	ToClient  VolumeRates `json:"toClient"`
}

// VolumeRates are how much goes through. Bytes count from the IP header on.
type VolumeRates struct {
	PacketsPerSecond float64 `json:"packetsPerSecond"`
	BytesPerSecond   float64 `json:"bytesPerSecond"`
}

// Packets are those of both directions, a second; 0 when none are counted.
func (t *TrafficRates) Packets() float64 {
	if t == nil {
		return 0
	}
	return t.ToBackend.PacketsPerSecond + t.ToClient.PacketsPerSecond
}

// Bytes are those of both directions, a second; 0 when none are counted.
func (t *TrafficRates) Bytes() float64 {
	if t == nil {
		return 0
	}
	return t.ToBackend.BytesPerSecond + t.ToClient.BytesPerSecond
}

// plus returns the sum of two; nil when neither is known.
func (t *TrafficRates) plus(o *TrafficRates) *TrafficRates {
	if t == nil || o == nil {
		return cmp.Or(t, o)
	}
	return &TrafficRates{t.ToBackend.plus(o.ToBackend), t.ToClient.plus(o.ToClient)}
}

func (v VolumeRates) plus(o VolumeRates) VolumeRates {
	return VolumeRates{v.PacketsPerSecond + o.PacketsPerSecond, v.BytesPerSecond + o.BytesPerSecond}
}

// trafficRates returns how fast traffic has grown.
func trafficRates(now, before statusmap.Traffic, seconds float64) *TrafficRates {
	volume := func(now, before statusmap.Volume) VolumeRates {
		return VolumeRates{rate(now.Packets, before.Packets, seconds), rate(now.Bytes, before.Bytes, seconds)}
	}
	return &TrafficRates{volume(now.ToBackend, before.ToBackend), volume(now.ToClient, before.ToClient)}
}
