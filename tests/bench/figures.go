package main

import (
	"fmt"
	"io"
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
	// likely is met when the bar, or better, lies within the quartiles.
	likely
)

// figure is a quantity with its value.
type figure struct {
	quantity
	value     float64    // the quantile of the runs, the median of those
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
	return f.bar <= f.quartiles[1]
}

// judge returns the quantities that were measured, with their values.
func judge(r results) []figure {
	var list []figure
	for _, q := range quantities() {
		runs := r[q.key]
		if len(runs) == 0 {
			continue
		}
		var values []float64
		for _, run := range runs {
			values = append(values, quantile(run, q.quantile()))
		}
		all := slices.Concat(runs...)
		list = append(list, figure{
			quantity:  q,
			value:     quantile(values, 0.5),
			quartiles: [2]float64{quantile(all, 0.25), quantile(all, 0.75)},
			runs:      [2]float64{slices.Min(values), slices.Max(values)},
			count:     len(all),
		})
	}
	return list
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
	return "MISSED"
}

func printFigures(w io.Writer, list []figure) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "FIGURE\tVALUE\tQUARTILES\tRUNS\tUNIT\tBAR\t")
	for _, f := range list {
		fmt.Fprintf(out, "%s\t%.4g\t%.4g..%.4g\t%.4g..%.4g\t%s\t%s\t%s\n", f.title, f.value,
			f.quartiles[0], f.quartiles[1], f.runs[0], f.runs[1], f.unit, f.barText(), f.verdict())
	}
	return out.Flush()
}

func writeReport([]figure) error { return nil }
