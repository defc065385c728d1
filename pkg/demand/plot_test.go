package demand

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/tests/tier"
)

var record = flag.Bool("record", false, "write docs/spill-over.svg anew")

const plotFile = "../../docs/spill-over.svg"

// Measures of the plot, in pixels.
const (
	plotLeft, plotTop     = 46, 14
	plotWidth, plotHeight = 700, 220
	plotMost              = 70 // percent
)

// curve is a figure over time, in percent.
type curve struct {
	name, color string
	values      []float64
}

// TestSpillOverPlot: the plot of the documentation is that of the simulation with connections of 20 s.
func TestSpillOverPlot(t *testing.T) {
	tier.OneGoroutine(t)
	const step, phase = 5 * time.Second, 10 * time.Minute
	s := newSimulation(1, 20*time.Second)
	asked := curve{name: "what the clients of zone 0 have open", color: "#777"}
	got := curve{name: "what the endpoints of zone 0 have", color: "#2a7f62"}
	spilled := curve{name: "new connections of zone 0 that spill over", color: "#c0392b"}
	s.demand(500, 500, 500)
	s.run(phase)
	for i, demand := range []float64{500, 1500, 500} {
		s.demand(demand, 500, 500)
		length := phase
		if i == 0 {
			length /= 2
		}
		for end := s.now + length; s.now < end; {
			s.run(step)
			mine, all, parts := 0, 0, 0
			for _, n := range s.nodes {
				all += n.sum()
				if n.zone == 0 {
					mine += n.sum()
					parts += n.spilled()
				}
			}
			asked.values = append(asked.values, 100*float64(mine)/float64(all))
			got.values = append(got.values, 100*s.load(0))
			spilled.values = append(spilled.values, float64(100*parts)/(simulatedNodes*20))
		}
	}
	plot := draw(step, []curve{asked, got, spilled})
	if *record {
		if err := os.WriteFile(plotFile, []byte(plot), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(plotFile); err != nil || string(have) != plot {
		t.Errorf("%s is not that of the simulation (%v): go test ./pkg/demand -run TestSpillOverPlot -record", plotFile, err)
	}
}

// draw draws curves whose values are a step apart.
func draw(step time.Duration, curves []curve) string {
	out := new(strings.Builder)
	length := len(curves[0].values)
	x := func(i int) float64 { return plotLeft + plotWidth*float64(i)/float64(length-1) }
	y := func(percent float64) float64 { return plotTop + plotHeight*(1-percent/plotMost) }
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n",
		plotLeft+plotWidth+34, plotTop+plotHeight+28+20*len(curves))
	fmt.Fprintln(out, `<rect width="100%" height="100%" fill="#fff"/>`)
	for percent := 0; percent <= plotMost; percent += 10 {
		fmt.Fprintf(out, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1[3]f" stroke="#ddd"/>`, plotLeft, plotLeft+plotWidth, y(float64(percent)))
		fmt.Fprintf(out, `<text x="%d" y="%.1f" text-anchor="end" fill="#555">%d %%</text>`+"\n", plotLeft-6, y(float64(percent))+4, percent)
	}
	for at := time.Duration(0); at <= time.Duration(length)*step; at += 5 * time.Minute {
		fmt.Fprintf(out, `<text x="%.1f" y="%d" text-anchor="middle" fill="#555">%g min</text>`+"\n", x(int(at/step)), plotTop+plotHeight+18, at.Minutes())
	}
	for i, c := range curves {
		var points []string
		for j, v := range c.values {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(j), y(v)))
		}
		fmt.Fprintf(out, `<polyline fill="none" stroke="%s" stroke-width="1.5" points="%s"/>`+"\n", c.color, strings.Join(points, " "))
		line := plotTop + plotHeight + 40 + 20*i
		fmt.Fprintf(out, `<line x1="%d" x2="%d" y1="%d" y2="%[3]d" stroke="%s" stroke-width="3"/>`, plotLeft, plotLeft+24, line-4, c.color)
		fmt.Fprintf(out, `<text x="%d" y="%d" fill="#222">%s</text>`+"\n", plotLeft+32, line, c.name)
	}
	fmt.Fprintln(out, "</svg>")
	return out.String()
}
