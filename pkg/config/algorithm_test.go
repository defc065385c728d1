package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

func TestAlgorithm(t *testing.T) {
	for _, tt := range []struct {
		args   string
		want   model.Algorithm
		unused bool // the scheduler has no effect
	}{
		{"", model.Random, false},
		{"--algorithm maglev", model.Maglev, false},
		{"--ipvs-scheduler rr", model.RoundRobin, false},
		{"--ipvs-scheduler mh", model.Maglev, false},
		{"--ipvs-scheduler lc", model.LeastConn, false},
		{"--ipvs-scheduler wlc", model.WeightedLeastConn, false},
		{"--ipvs-scheduler sed", model.ShortestDelay, false},
		{"--ipvs-scheduler nq", model.NeverQueue, false},
		{"--ipvs-scheduler lblc", model.Locality, false},
		{"--ipvs-scheduler lblcr", model.LocalityReplicated, false},
		{"--ipvs-scheduler ovf", model.Random, true},
		{"--ipvs-scheduler random", model.Random, true},
		{"--ipvs-scheduler maglev", model.Random, true},
		{"--ipvs-scheduler ewma", model.Random, true},
		{"--ipvs-scheduler sh --algorithm wrr", model.WeightedRoundRobin, true},
	} {
		s := mustSettings(t, strings.Fields(tt.args)...)
		equal(t, tt.args, s.Algorithm, tt.want)
		equal(t, tt.args+": unused", slices.Contains(s.Unused(), "ipvs.scheduler"), tt.unused)
	}
}
