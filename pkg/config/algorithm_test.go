package config

import (
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"

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

// TestAlgorithmsAreDocumented: who reads which values the setting and the annotation take finds all.
func TestAlgorithmsAreDocumented(t *testing.T) {
	for file, row := range map[string]string{
		"configuration-reference.md": "| `algorithm` |",
		"load-balancing.md":          "| `" + model.AnnotationAlgorithm + "` |",
	} {
		text, err := os.ReadFile("../../docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		_, line, found := strings.Cut(string(text), row)
		line, _, _ = strings.Cut(line, "\n")
		words := strings.FieldsFunc(line, func(r rune) bool { return !unicode.IsLetter(r) })
		for _, name := range model.Algorithms() {
			if !found || !slices.Contains(words, name) {
				t.Errorf("docs/%s, %s: no %s", file, row, name)
			}
		}
	}
}
