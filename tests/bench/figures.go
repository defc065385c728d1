package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/beeline-lb/beeline/pkg/model"
)

// samples are what one run measured, by key.
type samples map[string][]float64

func (s samples) add(key string, value float64) { s[key] = append(s[key], value) }

// of returns the key of a quantity that each family has.
func of(key string, family model.Family) string { return fmt.Sprintf("%s/%s", key, family) }

// results are the samples of each run, by key.
type results map[string][][]float64

func (r results) add(s samples) {
	for key, values := range s {
		r[key] = append(r[key], values)
	}
}

// bound says on which side of a bar a figure must be.
type bound int

const (
	none bound = iota
	atMost
	atLeast
	// likely is at least the bar, give or take the median's uncertainty.
	likely
)

// figure is a quantity with its value.
type figure struct {
	quantity
	value     float64    // median of the runs' medians, or percentile of all samples
	tenth     float64    // percentile of the samples of all runs: what is measured in undisturbed moments
	quartiles [2]float64 // of the samples of all runs
	runs      [2]float64 // lowest and highest value of a run
	count     int        // samples of all runs
}

func (f figure) met() bool {
	switch f.bound {
	case atMost:
		return f.value <= f.bar
	case atLeast:
		return f.value >= f.bar
	}
	return f.value+f.uncertainty() >= f.bar
}

// uncertainty returns two standard errors of the median, as they are for samples
// of a normal distribution.
func (f figure) uncertainty() float64 {
	const sigmaPerQuartiles, medianPerMean = 1 / 1.35, 1.25
	sigma := (f.quartiles[1] - f.quartiles[0]) * sigmaPerQuartiles
	return 2 * medianPerMean * sigma / math.Sqrt(float64(f.count))
}

// judge returns the quantities that were measured, with their values.
func judge(r results) []figure {
	var list []figure
	for _, q := range quantities() {
		if runs := r[q.key]; len(runs) > 0 {
			list = append(list, q.figure(runs))
		}
	}
	return list
}

func (q quantity) figure(runs [][]float64) figure {
	share := 0.5
	if q.p99 {
		share = 0.99
	}
	var values []float64
	for _, run := range runs {
		values = append(values, quantile(run, share))
	}
	all := slices.Concat(runs...)
	f := figure{
		quantity:  q,
		value:     quantile(values, 0.5),
		tenth:     quantile(all, 0.1),
		quartiles: [2]float64{quantile(all, 0.25), quantile(all, 0.75)},
		runs:      [2]float64{slices.Min(values), slices.Max(values)},
		count:     len(all),
	}
	if q.p99 {
		f.value = quantile(all, share)
	}
	return f
}

// quantile returns the value below which the share q of the values lies.
func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (sorted[high]-sorted[low])*(at-float64(low))
}

// bar returns what is asked of the figure, "" when nothing is.
func (f figure) barText() string {
	switch f.bound {
	case atMost:
		return fmt.Sprintf("<= %g", f.bar)
	case atLeast:
		return fmt.Sprintf(">= %g", f.bar)
	case likely:
		return fmt.Sprintf("%g within noise", f.bar)
	}
	return ""
}

// verdict returns "met" or "missed", "" when there is no bar.
func (f figure) verdict() string {
	switch {
	case f.bound == none:
		return ""
	case f.met():
		return "met"
	}
	return "missed"
}

func printFigures(w io.Writer, list []figure) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "FIGURE\tVALUE\tUNIT\tP10\tSPREAD\tRUNS\tBAR\t")
	for _, f := range list {
		fmt.Fprintf(out, "%s: %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.section, f.title, number(f.value), f.unit,
			f.tenthText(), f.spread(), span(f.runs), f.barText(), f.verdict())
	}
	return out.Flush()
}

// tenthText returns the 10th percentile; another percentile, and what was measured once, have none.
func (f figure) tenthText() string {
	if f.p99 || f.count == 1 {
		return ""
	}
	return number(f.tenth)
}

// spread returns the quartiles; a percentile has none.
func (f figure) spread() string {
	if f.p99 {
		return ""
	}
	return span(f.quartiles)
}

func span(s [2]float64) string {
	if number(s[0]) == number(s[1]) {
		return ""
	}
	return number(s[0]) + " to " + number(s[1])
}

// number shows three digits, and all before the point.
func number(v float64) string {
	switch size := math.Abs(v); {
	case size >= 99.5:
		return fmt.Sprintf("%.0f", v)
	case size >= 9.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
