package main

import (
	"fmt"
	"html"
	"strings"
)

// Measures of the plot, in pixels.
const (
	plotLabels = 600 // width of the column of names
	plotWidth  = 400 // of the share 0 to plotShare
	plotShare  = 1.6
	plotRow    = 20
	plotTop    = 44
)

// plot draws each figure that has a bar as a share of the bar: what is left of the
// line at 1 is met. The whisker is the middle half of the samples, for a
// percentile the lowest to the highest run.
func plot(figures []figure) string {
	var rows []figure
	for _, f := range figures {
		if f.bound != none {
			rows = append(rows, f)
		}
	}
	height := plotTop + plotRow*len(rows) + 10
	out := new(strings.Builder)
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n",
		plotLabels+plotWidth+90, height)
	fmt.Fprintln(out, `<rect width="100%" height="100%" fill="#fff"/>`)
	plotAxis(out, height)
	for i, f := range rows {
		f.plot(out, plotTop+plotRow*i)
	}
	fmt.Fprintln(out, "</svg>")
	return out.String()
}

func plotX(share float64) float64 {
	return plotLabels + plotWidth*min(max(share, 0), plotShare)/plotShare
}

func plotAxis(out *strings.Builder, height int) {
	fmt.Fprintf(out, `<text x="%g" y="16" text-anchor="middle" font-weight="bold">share of the bar (left of 1 is met)</text>`+"\n", plotX(plotShare/2))
	for tenth := 0; tenth <= plotShare*10; tenth += 5 {
		share := float64(tenth) / 10
		color, width := "#ddd", 1
		if share == 1 {
			color, width = "#333", 2
		}
		fmt.Fprintf(out, `<line x1="%g" x2="%[1]g" y1="38" y2="%d" stroke="%s" stroke-width="%d"/>`, plotX(share), height-8, color, width)
		fmt.Fprintf(out, `<text x="%g" y="33" text-anchor="middle" fill="#555">%g</text>`+"\n", plotX(share), share)
	}
}

// share returns how much of the bar a value takes.
func (f figure) share(value float64) float64 {
	if f.bound == atMost {
		return value / f.bar
	}
	return f.bar / value
}

func (f figure) plot(out *strings.Builder, y int) {
	color := "#2a7f62"
	if !f.met() {
		color = "#c0392b"
	}
	spread := f.quartiles
	if f.p99 {
		spread = f.runs
	}
	fmt.Fprintf(out, `<text x="%d" y="%d" text-anchor="end" fill="#222">%s</text>`, plotLabels-8, y+14,
		html.EscapeString(f.section+": "+f.title))
	fmt.Fprintf(out, `<rect x="%d" y="%d" width="%.1f" height="12" fill="%s"/>`, plotLabels, y+4,
		plotX(f.share(f.value))-plotLabels, color)
	fmt.Fprintf(out, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%[3]d" stroke="#000" stroke-width="1.5"/>`,
		plotX(f.share(spread[0])), plotX(f.share(spread[1])), y+10)
	fmt.Fprintf(out, `<text x="%d" y="%d" fill="#222">%s %s</text>`+"\n", plotLabels+plotWidth+6, y+14, number(f.value), f.unit)
}
